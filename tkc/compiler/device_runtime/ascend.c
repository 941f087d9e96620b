/* Loading and launching on Ascend, through CANN's libascendcl opened at run time.
 *
 * No Ascend device has run this yet. Names, layouts and the packing of arguments are those of CANN's public
 * interface as TileLang 0.1.15 uses it; the tests check them against a recording stand-in. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <tvm/ffi/extra/c_env_api.h>

#include "tkc_runtime.h"

enum {
  MAX_DEVICES = 64,
  MAX_KERNELS = 64,
  ARGUMENT_BYTES = 4096,
  EXT_DEVICE_TYPE = 12, /* DLPack's kDLExtDev, by which tensors on Ascend go */
  DYNAMIC_UBUF_SIZE = 2,
};

typedef struct {
  int32_t id;
  union {
    uint32_t dynamic_ubuf_bytes;
    uint32_t reserved[4];
  } value;
} launch_attribute;

typedef struct {
  launch_attribute* attributes;
  size_t count;
} launch_config;

static struct {
  int32_t (*aclrtSetDevice)(int32_t device);
  int32_t (*aclrtBinaryLoadFromData)(const void* data, size_t size, const void* options, void** binary);
  int32_t (*aclrtBinaryGetFunction)(void* binary, const char* name, void** function);
  int32_t (*aclrtLaunchKernelWithHostArgs)(void* function, uint32_t num_blocks, void* stream, launch_config* config,
                                           void* arguments, size_t size, void* reserved, size_t reserved_size);
  const char* (*aclGetRecentErrMsg)(void); /* absent from old versions */
} acl;

typedef void* kernel_functions[MAX_KERNELS];

static kernel_functions functions[MAX_DEVICES]; /* in the order of tkc_kernels */
static atomic_int is_loaded[MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int is_open;
static _Thread_local int this_device;

static int raise_acl(const char* kind, int32_t code, const char* what, const char* name, int device) {
  const char* words = acl.aclGetRecentErrMsg != NULL ? acl.aclGetRecentErrMsg() : NULL;
  return tkc_raise(kind, "%s: %s on Ascend device %d failed with ACL error %d%s%s", name, what, device, code,
                   words != NULL ? ": " : "", words != NULL ? words : "");
}

static int open_library(void) {
  if (is_open) return 0;
  void* library = dlopen("libascendcl.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return tkc_raise("LoadError",
                     "%s is compiled for Ascend (%s), and CANN's runtime cannot be opened: %s. Install CANN and source "
                     "its set_env.sh",
                     tkc_function, tkc_arch, dlerror());
#define RESOLVE(name)                                                                                              \
  if ((*(void**)&acl.name = dlsym(library, #name)) == NULL)                                                        \
    return tkc_raise("LoadError", "%s: CANN's libascendcl.so has no function `%s`; it is too old", tkc_function, #name);
  RESOLVE(aclrtSetDevice)
  RESOLVE(aclrtBinaryLoadFromData)
  RESOLVE(aclrtBinaryGetFunction)
  RESOLVE(aclrtLaunchKernelWithHostArgs)
#undef RESOLVE
  *(void**)&acl.aclGetRecentErrMsg = dlsym(library, "aclGetRecentErrMsg");
  is_open = 1;
  return 0;
}

static int load_binary(int device) {
  void* binary = NULL;
  int32_t code = acl.aclrtBinaryLoadFromData(tkc_device_binary, (size_t)tkc_device_binary_size, NULL, &binary);
  if (code != 0) return raise_acl("LoadError", code, "loading the device binary", tkc_function, device);
  if (tkc_num_kernels > MAX_KERNELS)
    return tkc_raise("LoadError", "%s has %d kernels; at most %d are supported", tkc_function, tkc_num_kernels, MAX_KERNELS);
  for (int32_t i = 0; i < tkc_num_kernels; ++i) {
    code = acl.aclrtBinaryGetFunction(binary, tkc_kernels[i].symbol, &functions[device][i]);
    if (code != 0) return raise_acl("LoadError", code, "finding the kernel", tkc_kernels[i].symbol, device);
  }
  return 0;
}

/* Open CANN, select the device, and load once per device. */
static int use_device(int64_t device) {
  if (device < 0 || device >= MAX_DEVICES)
    return tkc_raise("LoadError", "%s: Ascend device %lld is out of range", tkc_function, (long long)device);
  if (!atomic_load_explicit(&is_loaded[device], memory_order_acquire)) {
    pthread_mutex_lock(&mutex);
    int failed = open_library();
    int32_t code = failed ? 0 : acl.aclrtSetDevice((int32_t)device);
    if (code != 0) failed = raise_acl("LoadError", code, "selecting the device", tkc_function, (int)device);
    if (!failed && !atomic_load_explicit(&is_loaded[device], memory_order_relaxed)) {
      failed = load_binary((int)device);
      if (!failed) atomic_store_explicit(&is_loaded[device], 1, memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    if (failed) return -1;
  }
  this_device = (int)device;
  return 0;
}

static int set_device(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  if (num_args != 2) return tkc_raise("RuntimeError", "%s: __tvm_set_device takes 2 values, got %d", tkc_function, num_args);
  return use_device(args[1].v_int64);
}

/* Lay the arguments out as CANN wants them: each aligned to its size, and to no less than 4 bytes. */
static int pack(const tkc_kernel* kernel, const TVMFFIAny* args, unsigned char* buffer, size_t* used) {
  size_t offset = 0;
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const tkc_argument* argument = &kernel->arguments[i];
    size_t size = argument->size_bytes, alignment = size < 4 ? 4 : size;
    offset = (offset + alignment - 1) & ~(alignment - 1);
    if (offset + size > ARGUMENT_BYTES)
      return tkc_raise("RuntimeError", "kernel %s takes more than %d bytes of arguments", kernel->symbol, ARGUMENT_BYTES);
    if (argument->kind == TKC_POINTER && ((uintptr_t)args[i].v_ptr & (argument->alignment_bytes - 1)) != 0)
      return tkc_raise("ValueError", "argument `%s` of kernel %s is misaligned: address %p is not a multiple of %u bytes",
                       argument->name, kernel->symbol, args[i].v_ptr, argument->alignment_bytes);
    float narrowed = (float)args[i].v_float64;
    memcpy(buffer + offset, argument->kind == TKC_FLOAT32 ? (const void*)&narrowed : &args[i].v_int64, size);
    offset += size;
  }
  *used = (offset + 7) & ~(size_t)7;
  return 0;
}

static int launch(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)result;
  const tkc_kernel* kernel = self;
  if (num_args != kernel->num_arguments + kernel->num_launch_params)
    return tkc_raise("RuntimeError", "kernel %s takes %d arguments and %d launch parameters, got %d values",
                     kernel->symbol, kernel->num_arguments, kernel->num_launch_params, num_args);
  int64_t blocks[3] = {1, 1, 1}, ubuf_bytes = 0;
  for (int32_t i = 0; i < kernel->num_launch_params; ++i) {
    int64_t value = args[kernel->num_arguments + i].v_int64;
    if (kernel->launch_params[i] <= TKC_GRID_Z) blocks[kernel->launch_params[i]] = value;
    if (kernel->launch_params[i] == TKC_DYNAMIC_SHARED_BYTES) ubuf_bytes = value;
  }
  int64_t count = 1;
  for (int axis = 0; axis < 3; ++axis) {
    if (blocks[axis] == 0) return 0;
    if (blocks[axis] < 0 || blocks[axis] > UINT32_MAX / count)
      return tkc_raise("ValueError", "kernel %s: grid of %lld x %lld x %lld blocks; expected: 1 to 2^32 - 1 together",
                       kernel->symbol, (long long)blocks[0], (long long)blocks[1], (long long)blocks[2]);
    count *= blocks[axis];
  }
  _Alignas(8) unsigned char buffer[ARGUMENT_BYTES] = {0};
  size_t size = 0;
  if (pack(kernel, args, buffer, &size) != 0) return -1;
  launch_attribute attribute = {DYNAMIC_UBUF_SIZE, {(uint32_t)ubuf_bytes}};
  launch_config config = {&attribute, 1};
  int32_t code = acl.aclrtLaunchKernelWithHostArgs(functions[this_device][kernel - tkc_kernels], (uint32_t)count,
                                                   TVMFFIEnvGetStream(EXT_DEVICE_TYPE, this_device),
                                                   ubuf_bytes > 0 ? &config : NULL, buffer, size, NULL, 0);
  return code == 0 ? 0 : raise_acl("RuntimeError", code, "launching", kernel->symbol, this_device);
}

int TVMBackendGetFuncFromEnv(void* context, const char* name, TVMFFIObjectHandle* out) {
  (void)context;
  if (strcmp(name, "__tvm_set_device") == 0) return tkc_function_handle(NULL, set_device, out);
  for (int32_t i = 0; i < tkc_num_kernels; ++i)
    if (strcmp(tkc_kernels[i].symbol, name) == 0)
      return tkc_function_handle((void*)(uintptr_t)&tkc_kernels[i], launch, out);
  return tkc_raise("RuntimeError", "%s asks for the function `%s`, which the Ascend runtime does not have", tkc_function,
                   name);
}

TKC_EXPORT int32_t __tvm_ffi_main(void* self, void* args, int num_args, void* result) {
  return tkc_host_main(self, args, num_args, result);
}

TKC_EXPORT int32_t __tvm_ffi_main_pdl(void* self, void* args, int num_args, void* result) {
  return tkc_host_main(self, args, num_args, result);
}

/* Load every kernel on one device, given by its index, and launch nothing. */
TKC_EXPORT int32_t __tkc_load(void* self, void* args, int num_args, void* result) {
  (void)self, (void)result;
  const TVMFFIAny* values = args;
  if (num_args != 1 || (values[0].type_index != kTVMFFIInt && values[0].type_index != kTVMFFIDevice))
    return tkc_raise("TypeError", "%s: loading takes one argument, the index of an Ascend device", tkc_function);
  return use_device(values[0].type_index == kTVMFFIInt ? values[0].v_int64 : values[0].v_device.device_id);
}
