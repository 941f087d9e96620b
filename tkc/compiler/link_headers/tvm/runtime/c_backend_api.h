/* The one function through which generated host C reaches the device. The device runtime defines it. */
#ifndef TKC_TVM_RUNTIME_C_BACKEND_API_H
#define TKC_TVM_RUNTIME_C_BACKEND_API_H

#include <tvm/runtime/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Store in `*out` a function called `name`; 0 on success, -1 with a raised error otherwise. */
int TVMBackendGetFuncFromEnv(void* context, const char* name, TVMFFIObjectHandle* out);

#ifdef __cplusplus
}
#endif
#endif
