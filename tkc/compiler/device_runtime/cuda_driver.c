/* Opening the CUDA driver at run time, and saying what it complains about. */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

#include "tkc_runtime.h"

tkc_driver tkc_cuda;

static int resolve(void* library) {
#define TKC_RESOLVE(name, parameters)                                                                                  \
  if ((*(void**)&tkc_cuda.name = dlsym(library, #name)) == NULL)                                                       \
    return tkc_raise("LoadError", "%s: the NVIDIA driver has no function `%s`; it is too old. Update it to 525 or newer", \
                     tkc_function, #name);
  TKC_DRIVER_FUNCTIONS(TKC_RESOLVE)
#undef TKC_RESOLVE
  return 0;
}

int tkc_driver_open(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return tkc_raise("LoadError",
                     "%s is compiled for CUDA (%s), and the NVIDIA driver's library cannot be opened: %s. Run it on a "
                     "machine with an NVIDIA driver, and in a container pass the devices through (--gpus all)",
                     tkc_function, tkc_arch, dlerror());
  if (resolve(library) != 0) return -1;
  CUresult code = tkc_cuda.cuInit(0);
  if (code != CUDA_SUCCESS) return tkc_raise_cuda("LoadError", code, "%s: the CUDA driver does not start", tkc_function);
  return 0;
}

static const char* hint(CUresult code) {
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "The device has no memory left: free some, or load artifacts before the rest is allocated (tkc.warmup)";
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return "Look at CUDA_VISIBLE_DEVICES and at what nvidia-smi lists";
    case CUDA_ERROR_INVALID_IMAGE:
      return "The device binary is damaged or newer than the driver: verify the store (tkc cache fsck), update the driver";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "Build it for this device: tkc build --target";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "The driver is older than the compiler: update the driver";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "One block asks for more registers, threads or shared memory than the device has";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
      return "This or an earlier launch in the process failed on the device, which is reported late. Find it with "
             "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; the process must be restarted";
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
      return "A cooperative grid must fit on the device at once: launch fewer blocks";
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
      return "The grid must be a multiple of the cluster, and the cluster one that the device can hold";
    default:
      break;
  }
  if (code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    return "A CUDA graph is being captured: load before the capture begins (tkc.warmup), and launch on the stream "
           "that is captured";
  if (code == CUDA_ERROR_NOT_PERMITTED)
    return "The driver does not allow this now; while a CUDA graph is being captured nothing can be loaded "
           "(tkc.warmup loads before)";
  return "";
}

int tkc_raise_cuda(const char* kind, CUresult code, const char* format, ...) {
  char what[2048];
  va_list rest;
  va_start(rest, format);
  vsnprintf(what, sizeof what, format, rest);
  va_end(rest);
  const char *name = NULL, *text = NULL;
  if (tkc_cuda.cuGetErrorName != NULL) tkc_cuda.cuGetErrorName(code, &name);
  if (tkc_cuda.cuGetErrorString != NULL) tkc_cuda.cuGetErrorString(code, &text);
  const char* advice = hint(code);
  return tkc_raise(kind, "%s: CUDA error %d, %s: %s.%s%s", what, code, name != NULL ? name : "unknown",
                   text != NULL ? text : "no description", advice[0] != '\0' ? " " : "", advice);
}
