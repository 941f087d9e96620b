// Launch a kernel that was compiled ahead of time, from C++: no Python in the process, no compiler, no PyTorch.
//
//   transpose KERNEL.so [cpu | cuda]
//
// KERNEL.so is the library of the artifact `transpose.batched_transpose size_bytes=4` for this machine's CPU, or for its
// GPU. README.md says how to build it, how to find it, and how to compile this file.

#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

// The few functions of the CUDA driver that a host needs, opened at run time: the same program runs where it is not.
class Driver {
 public:
  static Driver& Get() {
    static Driver driver;
    return driver;
  }

  void* Allocate(size_t size_bytes) {
    uint64_t address = 0;
    Check(allocate_(&address, size_bytes), "cuMemAlloc");
    return reinterpret_cast<void*>(address);
  }

  void Free(void* data) { free_(reinterpret_cast<uint64_t>(data)); }

  // A copy waits for the kernels before it: all of them are on the default stream.
  void ToDevice(void* to, const void* from, size_t size_bytes) {
    Check(to_device_(reinterpret_cast<uint64_t>(to), from, size_bytes), "cuMemcpyHtoD");
  }

  void ToHost(void* to, const void* from, size_t size_bytes) {
    Check(to_host_(to, reinterpret_cast<uint64_t>(from), size_bytes), "cuMemcpyDtoH");
  }

 private:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (library_ == nullptr) throw std::runtime_error("there is no CUDA driver here");
    auto init = Find<int(unsigned)>("cuInit");
    auto retain = Find<int(void**, int)>("cuDevicePrimaryCtxRetain");
    auto enter = Find<int(void*)>("cuCtxSetCurrent");
    allocate_ = Find<int(uint64_t*, size_t)>("cuMemAlloc_v2");
    free_ = Find<int(uint64_t)>("cuMemFree_v2");
    to_device_ = Find<int(uint64_t, const void*, size_t)>("cuMemcpyHtoD_v2");
    to_host_ = Find<int(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2");
    void* context = nullptr;
    Check(init(0), "cuInit");
    Check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    Check(enter(context), "cuCtxSetCurrent");
  }

  template <typename Signature>
  Signature* Find(const char* name) {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr) throw std::runtime_error(std::string("the CUDA driver has no ") + name);
    return reinterpret_cast<Signature*>(symbol);
  }

  static void Check(int status, const char* what) {
    if (status != 0) throw std::runtime_error(std::string(what) + " failed with " + std::to_string(status));
  }

  void* library_;
  int (*allocate_)(uint64_t*, size_t) = nullptr;
  int (*free_)(uint64_t) = nullptr;
  int (*to_device_)(uint64_t, const void*, size_t) = nullptr;
  int (*to_host_)(void*, uint64_t, size_t) = nullptr;
};

constexpr size_t kAlignment = 256;

size_t SizeBytes(const DLTensor& tensor) {
  size_t elements = 1;
  for (int dim = 0; dim < tensor.ndim; ++dim) elements *= tensor.shape[dim];
  return elements * (tensor.dtype.bits / 8);
}

// How tvm-ffi allocates our tensors.
struct Allocator {
  void AllocData(DLTensor* tensor) {
    size_t size_bytes = (SizeBytes(*tensor) + kAlignment - 1) / kAlignment * kAlignment;
    tensor->data = tensor->device.device_type == kDLCPU ? std::aligned_alloc(kAlignment, size_bytes)
                                                        : Driver::Get().Allocate(size_bytes);
  }

  void FreeData(DLTensor* tensor) {
    if (tensor->device.device_type == kDLCPU) {
      std::free(tensor->data);
    } else {
      Driver::Get().Free(tensor->data);
    }
  }
};

ffi::Tensor Empty(std::vector<int64_t> shape, DLDevice device) {
  return ffi::Tensor::FromNDAlloc(Allocator(), ffi::ShapeView(shape.data(), shape.size()), DLDataType{kDLFloat, 32, 1},
                                  device);
}

void Write(const ffi::Tensor& to, const std::vector<float>& from) {
  size_t size_bytes = from.size() * sizeof(float);
  if (to.device().device_type == kDLCPU) {
    std::memcpy(to.data_ptr(), from.data(), size_bytes);
  } else {
    Driver::Get().ToDevice(to.data_ptr(), from.data(), size_bytes);
  }
}

std::vector<float> Read(const ffi::Tensor& from, size_t elements) {
  std::vector<float> to(elements);
  if (from.device().device_type == kDLCPU) {
    std::memcpy(to.data(), from.data_ptr(), elements * sizeof(float));
  } else {
    Driver::Get().ToHost(to.data(), from.data_ptr(), elements * sizeof(float));
  }
  return to;
}

// Numbers of the elements that are not where a transpose puts them.
size_t CountWrong(const std::vector<float>& x, const std::vector<float>& out, size_t rows, size_t columns) {
  size_t wrong = 0;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      wrong += out[column * rows + row] != x[row * columns + column];
    }
  }
  return wrong;
}

int Run(const char* library, DLDevice device) {
  constexpr size_t kRows = 333, kColumns = 129;
  ffi::Module artifact = ffi::Module::LoadFromFile(library);
  ffi::Function kernel = artifact->GetFunction("main").value();

  std::vector<float> x(kRows * kColumns);
  for (size_t index = 0; index < x.size(); ++index) x[index] = static_cast<float>(index);
  ffi::Tensor x_there = Empty({1, kRows, kColumns}, device), out_there = Empty({1, kColumns, kRows}, device);
  Write(x_there, x);
  Write(out_there, std::vector<float>(x.size(), -1.0f));

  kernel(x_there, out_there);  // the launch arguments, in the order of the kernel's spec: `tkc show`

  size_t wrong = CountWrong(x, Read(out_there, x.size()), kRows, kColumns);
  std::printf("%zu x %zu elements transposed, %zu wrong\n", kRows, kColumns, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bool on_cuda = argc == 3 && std::strcmp(argv[2], "cuda") == 0;
  if (argc < 2 || argc > 3 || (argc == 3 && !on_cuda && std::strcmp(argv[2], "cpu") != 0)) {
    std::fprintf(stderr, "usage: %s KERNEL.so [cpu | cuda]\n", argv[0]);
    return 2;
  }
  try {
    return Run(argv[1], DLDevice{on_cuda ? kDLCUDA : kDLCPU, 0});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
