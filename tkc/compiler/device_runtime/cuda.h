/* What the files of the CUDA runtime share. */
#ifndef TKC_CUDA_H
#define TKC_CUDA_H

#include "cuda_driver.h"
#include "tkc_runtime.h"

/* What the calling thread is doing: one variable, because reaching a thread's variables costs a call. */
typedef struct {
  int device;         /* set by __tvm_set_device */
  int pdl;            /* launch with programmatic dependent launch where a kernel can */
  int switched;       /* the current context was changed, and `previous` is to be put back */
  CUcontext previous;
} tkc_thread;

extern _Thread_local tkc_thread tkc_this_thread;

/* The function for a name that is not a kernel's; NULL if there is none. */
TVMFFISafeCallType tkc_cuda_builtin(const char* name);

/* Read arguments of a packed call. */
static inline int64_t tkc_integer(const TVMFFIAny* value) {
  return value->type_index == kTVMFFIFloat ? (int64_t)value->v_float64 : value->v_int64;
}

static inline double tkc_real(const TVMFFIAny* value) {
  return value->type_index == kTVMFFIFloat ? value->v_float64 : (double)value->v_int64;
}

static inline void* tkc_pointer(const TVMFFIAny* value) {
  return value->type_index == kTVMFFINone ? NULL : value->v_ptr;
}

int tkc_set_access_policy_window(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
int tkc_reset_access_policy_window(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
int tkc_tensormap_tiled(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
int tkc_tensormap_im2col(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

/* The caller's current stream on a device. */
CUstream tkc_stream(int device);

#endif
