/* L2 persistence: a window of memory whose lines the second-level cache tries to keep, per stream. */
#include <string.h>

#include "cuda.h"

/* What the limit was before a window was set on this thread, to be put back. */
static _Thread_local struct {
  size_t limit_bytes;
  int is_set;
} before;

static int failed(CUresult code, const char* what) {
  return tkc_raise_cuda("RuntimeError", code, "%s: cannot %s on CUDA device %d", tkc_function, what,
                        tkc_this_thread.device);
}

/* No more than the device's `attribute`, where it has one. */
static CUresult at_most(int attribute, size_t* value) {
  CUdevice device;
  int most = 0;
  CUresult code = tkc_cuda.cuDeviceGet(&device, tkc_this_thread.device);
  if (code == CUDA_SUCCESS) code = tkc_cuda.cuDeviceGetAttribute(&most, attribute, device);
  if (code == CUDA_SUCCESS && most > 0 && *value > (size_t)most) *value = (size_t)most;
  return code;
}

static CUstream stream_of(const TVMFFIAny* args, int32_t num_args, int32_t index) {
  void* given = num_args > index ? tkc_pointer(&args[index]) : NULL;
  return given != NULL ? (CUstream)given : tkc_stream(tkc_this_thread.device);
}

/* Arguments: address, bytes, then optionally the share of accesses that persist (0.8), the stream (the caller's
 * current one) and the bytes of cache set aside (as many as the window). */
int tkc_set_access_policy_window(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  if (num_args < 2) return tkc_raise("RuntimeError", "%s: an access policy window takes an address and a size", tkc_function);
  size_t window_bytes = (size_t)tkc_integer(&args[1]);
  size_t limit_bytes = num_args > 4 ? (size_t)tkc_integer(&args[4]) : window_bytes;
  CUresult code = at_most(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, &limit_bytes);
  if (code == CUDA_SUCCESS) code = at_most(CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, &window_bytes);
  if (code != CUDA_SUCCESS) return failed(code, "read the size of the second-level cache");

  size_t limit_before = 0;
  code = tkc_cuda.cuCtxGetLimit(&limit_before, CU_LIMIT_PERSISTING_L2_CACHE_SIZE);
  if (code == CUDA_SUCCESS) code = tkc_cuda.cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, limit_bytes);
  if (code != CUDA_SUCCESS) return failed(code, "set cache aside");
  if (!before.is_set) before.limit_bytes = limit_before;
  before.is_set = 1;

  CUlaunchAttributeValue value;
  memset(&value, 0, sizeof value);
  value.accessPolicyWindow.base_ptr = tkc_pointer(&args[0]);
  value.accessPolicyWindow.num_bytes = window_bytes < limit_bytes ? window_bytes : limit_bytes;
  value.accessPolicyWindow.hitRatio = num_args > 2 ? (float)tkc_real(&args[2]) : 0.8f;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  code = tkc_cuda.cuStreamSetAttribute(stream_of(args, num_args, 3), CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value);
  return code == CUDA_SUCCESS ? 0 : failed(code, "set a stream's access policy window");
}

/* Argument: optionally the stream. */
int tkc_reset_access_policy_window(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  CUlaunchAttributeValue value;
  memset(&value, 0, sizeof value); /* a window of 0 bytes is none */
  CUresult code =
      tkc_cuda.cuStreamSetAttribute(stream_of(args, num_args, 0), CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value);
  if (code == CUDA_SUCCESS) code = tkc_cuda.cuCtxResetPersistingL2Cache();
  if (code == CUDA_SUCCESS && before.is_set)
    code = tkc_cuda.cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, before.limit_bytes);
  before.is_set = 0;
  return code == CUDA_SUCCESS ? 0 : failed(code, "remove a stream's access policy window");
}
