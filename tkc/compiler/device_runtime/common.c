/* Errors and function handles: what every backend's runtime needs of tvm-ffi. */
#include <stdarg.h>
#include <stdio.h>

#include "tkc_runtime.h"

int tkc_raise(const char* kind, const char* format, ...) {
  char message[4096];
  va_list rest;
  va_start(rest, format);
  vsnprintf(message, sizeof message, format, rest);
  va_end(rest);
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

int tkc_function_handle(void* self, TVMFFISafeCallType call, TVMFFIObjectHandle* out) {
  return TVMFFIFunctionCreate(self, call, NULL, out);
}
