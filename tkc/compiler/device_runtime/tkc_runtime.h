/* What the files of the device runtime share. */
#ifndef TKC_RUNTIME_H
#define TKC_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include <tvm/ffi/c_api.h>

#include "kernel_table.h"

#define TKC_EXPORT __attribute__((visibility("default")))
#define TKC_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* The generated host function: checks its arguments, then calls what TVMBackendGetFuncFromEnv gives it. */
extern int32_t tkc_host_main(void* self, void* args, int num_args, void* result);

/* The device binary, embedded when the artifact was linked. */
extern const unsigned char tkc_device_binary[];
extern const uint64_t tkc_device_binary_size;

/* Raise an error of `kind` for the caller of the artifact; gives -1, what every entry returns on failure. */
int tkc_raise(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3), cold));

/* A function that the host function asks for by name. */
typedef struct {
  const char* name;
  TVMFFISafeCallType call;
} tkc_builtin;

/* Give `*out` a handle that calls `call` with `self`. The caller keeps it for the life of the process. */
int tkc_function_handle(void* self, TVMFFISafeCallType call, TVMFFIObjectHandle* out);

#endif
