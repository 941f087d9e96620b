/* The entries of an artifact whose kernels are C functions of the same library: there is no device to reach. */
#include "tkc_runtime.h"

TKC_EXPORT int32_t __tvm_ffi_main(void* self, void* args, int num_args, void* result) {
  return tkc_host_main(self, args, num_args, result);
}

TKC_EXPORT int32_t __tvm_ffi_main_pdl(void* self, void* args, int num_args, void* result) {
  return tkc_host_main(self, args, num_args, result);
}

int TVMBackendGetFuncFromEnv(void* context, const char* name, TVMFFIObjectHandle* out) {
  (void)context;
  (void)out;
  return tkc_raise("RuntimeError", "%s asks for the function `%s`, which the CPU runtime does not have", tkc_function,
                   name);
}
