/* What generated host C expects of this name: tvm-ffi's C API. */
#ifndef TKC_TVM_RUNTIME_BASE_H
#define TKC_TVM_RUNTIME_BASE_H

#include <tvm/ffi/c_api.h>

#endif
