/* Eight threads that load and launch through the CUDA runtime, for sanitizers to watch. */
#include <pthread.h>
#include <stdatomic.h>

#include "host.h"

enum { THREADS = 8, CALLS = 100 };

extern int32_t __tvm_ffi_main_pdl(void* self, void* args, int num_args, void* result);

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
