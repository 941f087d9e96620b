// Stands before every source that NVRTC compiles: what nvcc gives a source unasked.
#pragma once

#define __CUDA_ARCH_LIST__ __CUDA_ARCH__
#define CUDART_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)

// A TMA descriptor, as cuda.h declares it; TileLang's own declaration aligns it to 64 bytes.
#define CU_TENSOR_MAP_NUM_QWORDS 16
struct alignas(128) CUtensorMap_st {
  unsigned long long opaque[CU_TENSOR_MAP_NUM_QWORDS];
};
using CUtensorMap = CUtensorMap_st;

#include <tl_templates/cuda/nvrtc_std.h>

// The built-in assert names its header's absolute path, which would be in the binary.
#undef assert
#define assert(condition) \
  (static_cast<bool>(condition) ? void() : __assertfail(#condition, "device.cu", __LINE__, __PRETTY_FUNCTION__, 1))

// The two functions of the device runtime that programs use.
static __device__ __forceinline__ void cudaGridDependencySynchronize() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
static __device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
