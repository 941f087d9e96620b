/* The part of the CUDA driver API that is used, declared here so that building needs no CUDA.
 *
 * Names, layouts and numbers are those of the driver's stable binary interface, checked against cuda.h
 * by tests. */
#ifndef TKC_CUDA_DRIVER_H
#define TKC_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
};

enum {
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE = 108,
  CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE = 109,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
  CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_ACCESS_PROPERTY_STREAMING = 1,
  CU_ACCESS_PROPERTY_PERSISTING = 2,
};

enum {
  CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1,
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

typedef struct {
  void* base_ptr;
  size_t num_bytes;
  float hitRatio;
  int hitProp;
  int missProp;
} CUaccessPolicyWindow;

typedef union {
  char pad[64];
  CUaccessPolicyWindow accessPolicyWindow;
  int cooperative;
  struct {
    unsigned int x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
} CUlaunchAttributeValue;

typedef struct {
  int id;
  char pad[4];
  CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
  unsigned int gridDimX, gridDimY, gridDimZ;
  unsigned int blockDimX, blockDimY, blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned int numAttrs;
} CUlaunchConfig;

typedef struct {
  uint64_t opaque[16] __attribute__((aligned(64)));
} CUtensorMap;

_Static_assert(sizeof(CUlaunchAttribute) == 72, "layout of the driver's launch attributes");
_Static_assert(sizeof(CUlaunchConfig) == 56, "layout of the driver's launch configuration");
_Static_assert(sizeof(CUtensorMap) == 128, "size of the driver's tensor maps");

/* Every driver function that is used. */
#define TKC_DRIVER_FUNCTIONS(F)                                                                                        \
  F(cuInit, (unsigned int flags))                                                                                      \
  F(cuGetErrorName, (CUresult code, const char** name))                                                                \
  F(cuGetErrorString, (CUresult code, const char** text))                                                              \
  F(cuDeviceGet, (CUdevice * device, int ordinal))                                                                     \
  F(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                                \
  F(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                  \
  F(cuCtxGetCurrent, (CUcontext * context))                                                                            \
  F(cuCtxSetCurrent, (CUcontext context))                                                                              \
  F(cuCtxGetLimit, (size_t * value, int limit))                                                                        \
  F(cuCtxSetLimit, (int limit, size_t value))                                                                          \
  F(cuCtxResetPersistingL2Cache, (void))                                                                               \
  F(cuModuleLoadData, (CUmodule * module, const void* image))                                                          \
  F(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                                   \
  F(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                                               \
  F(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra))             \
  F(cuStreamIsCapturing, (CUstream stream, int* status))                                                               \
  F(cuStreamSetAttribute, (CUstream stream, int attribute, const CUlaunchAttributeValue* value))                       \
  F(cuThreadExchangeStreamCaptureMode, (int* mode))                                                                    \
  F(cuTensorMapEncodeTiled, (CUtensorMap * map, int type, uint32_t rank, void* address, const uint64_t* dims,          \
                             const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,            \
                             int interleave, int swizzle, int promotion, int fill))                                    \
  F(cuTensorMapEncodeIm2col, (CUtensorMap * map, int type, uint32_t rank, void* address, const uint64_t* dims,         \
                              const uint64_t* strides, const int* lower, const int* upper, uint32_t channels,          \
                              uint32_t pixels, const uint32_t* element_strides, int interleave, int swizzle,           \
                              int promotion, int fill))

#define TKC_DECLARE(name, parameters) CUresult(*name) parameters;
typedef struct {
  TKC_DRIVER_FUNCTIONS(TKC_DECLARE)
} tkc_driver;
#undef TKC_DECLARE

/* The driver's functions; filled in by tkc_driver_open, and not before. */
extern tkc_driver tkc_cuda;

/* Open the driver and start it. Raises LoadError if there is none. Call it under a lock; a failure may be retried. */
int tkc_driver_open(void);

/* Raise `kind`: what was being done, the driver's name and words for `code`, and what to do about it. */
int tkc_raise_cuda(const char* kind, CUresult code, const char* format, ...)
    __attribute__((format(printf, 3, 4), cold));

#endif
