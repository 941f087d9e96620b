/* Eight threads that load and launch through the device runtime, for sanitizers to watch.
 *
 * Stands in for tvm-ffi, for the host function and for the device binary. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tkc_runtime.h"

enum { THREADS = 8, CALLS = 100 };

const unsigned char tkc_device_binary[] = "\x7f" "ELF";
const uint64_t tkc_device_binary_size = 4;

typedef struct {
  void* self;
  TVMFFISafeCallType call;
} function;

int TVMFFIFunctionCreate(void* self, TVMFFISafeCallType call, void (*deleter)(void*), TVMFFIObjectHandle* out) {
  (void)deleter;
  function* made = malloc(sizeof *made);
  *made = (function){self, call};
  *out = made;
  return 0;
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) { printf("%s: %s\n", kind, message); }

void* TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  (void)device_type, (void)device;
  return NULL;
}

extern int TVMBackendGetFuncFromEnv(void* context, const char* name, TVMFFIObjectHandle* out);
extern int32_t __tvm_ffi_main_pdl(void* self, void* args, int num_args, void* result);

static int call(const char* name, const TVMFFIAny* args, int32_t num_args) {
  TVMFFIObjectHandle handle;
  if (TVMBackendGetFuncFromEnv(NULL, name, &handle) != 0) return -1;
  function made = *(function*)handle;
  free(handle);
  TVMFFIAny result = {0};
  return made.call(made.self, args, num_args, &result);
}

static TVMFFIAny integer(int64_t value) {
  TVMFFIAny any;
  memset(&any, 0, sizeof any);
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

static atomic_int launches;

static int launch(int64_t address, int64_t shared_bytes, int32_t num_values) {
  TVMFFIAny values[5] = {integer(address), integer(0), integer(7), integer(128), integer(shared_bytes)};
  values[0].type_index = kTVMFFIOpaquePtr;
  values[1].type_index = kTVMFFIFloat;
  values[1].v_float64 = 0.5;
  return call("k", values, num_values);
}

int32_t tkc_host_main(void* self, void* args, int num_args, void* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  int turn = atomic_fetch_add(&launches, 1);
  TVMFFIAny device[] = {integer(2), integer(turn % 2)};
  if (call("__tvm_set_device", device, 2) != 0) return -1;
  return launch(0x10000, 49152 + turn, 5);
}

static void* work(void* unused) {
  (void)unused;
  for (int i = 0; i < CALLS; ++i)
    if (__tvm_ffi_main_pdl(NULL, NULL, 0, NULL) != 0) abort();
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, work, NULL);
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  printf("%d launches\n", atomic_load(&launches));
  return launch(0x10008, 0, 5) == -1 && launch(0x10000, 0, 4) == -1 ? 0 : 1;
}
