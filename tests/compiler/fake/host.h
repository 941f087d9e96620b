/* Stands in for tvm-ffi and for the device binary, so that a device runtime can be watched alone. */
#ifndef FAKE_HOST_H
#define FAKE_HOST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tkc_runtime.h"

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

#endif
