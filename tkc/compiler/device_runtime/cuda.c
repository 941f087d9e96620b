/* Devices, modules and launches on the CUDA driver API.
 *
 * The driver is opened, a device's primary context retained and the module loaded when a device is first
 * used, under one mutex. What that gives is published by a store with release order, and read by loads with
 * acquire order: launches after the first take no lock and allocate nothing.
 *
 * Modules (cuModuleLoadData) and not libraries (cuLibraryLoadData): a module belongs to one context and
 * cuModuleGetFunction loads the kernel's code there and then, so that after a warm-up nothing is left to be
 * loaded lazily, which would wait for the device, and never return beside a kernel that runs for ever. */
#include "cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <tvm/ffi/extra/c_env_api.h>

enum { MAX_DEVICES = 64, CUDA_DEVICE_TYPE = 2, DEFAULT_SHARED_BYTES = 48 * 1024 };

/* One kernel on one device. */
typedef struct {
  CUfunction function;
  atomic_uint shared_bytes; /* dynamic shared memory that was opted into */
} loaded_kernel;

/* One device. `context` and `kernels` are written once, under the mutex. */
typedef struct {
  _Atomic(CUcontext) context;
  _Atomic(loaded_kernel*) kernels; /* in the order of tkc_kernels */
  int capability;                  /* such as 90 */
} device_state;

static device_state devices[MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int driver_is_open;

_Thread_local tkc_thread tkc_this_thread;

/* ---- fork: the driver does not survive it, and hangs or crashes instead of saying so ---- */

static _Atomic(volatile unsigned char*) alive; /* a page that the kernel clears in a child; holds 1 in this process */

static void watch_for_fork(void) {
  enum { PAGE = 65536, WIPE_ON_FORK = 18 };
  void* page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (madvise(page, PAGE, WIPE_ON_FORK) != 0) return; /* before Linux 4.14 nothing is noticed */
  *(volatile unsigned char*)page = 1;
  atomic_store_explicit(&alive, page, memory_order_release);
}

static int is_forked(void) {
  volatile unsigned char* page = atomic_load_explicit(&alive, memory_order_acquire);
  return page != NULL && *page == 0;
}

static int refuse_forked(void) {
  return tkc_raise("RuntimeError",
                   "%s: this process was forked from one that had used CUDA, and CUDA does not work in such a child. "
                   "Start it with the spawn or forkserver method (multiprocessing.set_start_method), or fork before "
                   "the first launch",
                   tkc_function);
}

/* ---- devices ---- */

static int check_capability(int device, int capability);

/* Start the driver and retain the primary context. Called under the mutex. */
static int open_device(int ordinal) {
  device_state* state = &devices[ordinal];
  if (atomic_load_explicit(&state->context, memory_order_relaxed) != NULL) return 0;
  if (!driver_is_open) {
    if (tkc_driver_open() != 0) return -1;
    watch_for_fork();
    driver_is_open = 1;
  }
  CUdevice device;
  CUresult code = tkc_cuda.cuDeviceGet(&device, ordinal);
  if (code != CUDA_SUCCESS) return tkc_raise_cuda("LoadError", code, "%s: there is no CUDA device %d", tkc_function, ordinal);
  int major = 0, minor = 0;
  code = tkc_cuda.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (code == CUDA_SUCCESS)
    code = tkc_cuda.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (code != CUDA_SUCCESS)
    return tkc_raise_cuda("LoadError", code, "%s: CUDA device %d does not tell its architecture", tkc_function, ordinal);
  state->capability = 10 * major + minor;
  if (check_capability(ordinal, state->capability) != 0) return -1;
  CUcontext context = NULL;
  code = tkc_cuda.cuDevicePrimaryCtxRetain(&context, device);
  if (code != CUDA_SUCCESS)
    return tkc_raise_cuda("LoadError", code, "%s: no context on CUDA device %d", tkc_function, ordinal);
  atomic_store_explicit(&state->context, context, memory_order_release);
  return 0;
}

/* Does a binary for `arch`, such as sm_90a, run on a device? A plain one and one of a family (sm_100f) run on later
 * minor versions of their generation, one of an exact architecture (sm_90a) on that alone. */
static int runs_on(const char* arch, int capability) {
  int built = 0;
  const char* at = arch;
  while (*at != '\0' && (*at < '0' || *at > '9')) ++at;
  for (; *at >= '0' && *at <= '9'; ++at) built = 10 * built + (*at - '0');
  if (built == 0) return 1; /* not known: the driver decides */
  if (*at == 'a') return built == capability;
  return built / 10 == capability / 10 && built <= capability;
}

static int check_capability(int device, int capability) {
  if (runs_on(tkc_arch, capability)) return 0;
  return tkc_raise("LoadError",
                   "%s is built for %s, and CUDA device %d is an sm_%d. Build it for that device: tkc build --target sm%d",
                   tkc_function, tkc_arch, device, capability, capability);
}

/* The state of a device whose context exists; NULL with a raised error otherwise. */
static device_state* get_device(int64_t ordinal) {
  if (TKC_UNLIKELY(ordinal < 0 || ordinal >= MAX_DEVICES)) {
    tkc_raise("LoadError", "%s: CUDA device %lld is out of range; expected 0 to %d", tkc_function, (long long)ordinal,
              MAX_DEVICES - 1);
    return NULL;
  }
  if (TKC_UNLIKELY(is_forked())) {
    refuse_forked();
    return NULL;
  }
  device_state* state = &devices[ordinal];
  if (TKC_UNLIKELY(atomic_load_explicit(&state->context, memory_order_acquire) == NULL)) {
    pthread_mutex_lock(&mutex);
    int failed = open_device((int)ordinal);
    pthread_mutex_unlock(&mutex);
    if (failed) return NULL;
  }
  return state;
}

/* Make a device's context the thread's current one, and remember the one before. */
static int enter(device_state* state) {
  CUcontext wanted = atomic_load_explicit(&state->context, memory_order_relaxed), current = NULL;
  CUresult code = tkc_cuda.cuCtxGetCurrent(&current);
  if (code == CUDA_SUCCESS && current == wanted) return 0;
  if (code == CUDA_SUCCESS) code = tkc_cuda.cuCtxSetCurrent(wanted);
  if (code != CUDA_SUCCESS)
    return tkc_raise_cuda("RuntimeError", code, "%s: cannot use CUDA device %d", tkc_function, (int)(state - devices));
  if (!tkc_this_thread.switched) {
    tkc_this_thread.switched = 1;
    tkc_this_thread.previous = current;
  }
  return 0;
}

/* Give the thread its own current context back: a call on a tensor of another device changes nothing else. */
static void leave(void) {
  if (TKC_UNLIKELY(tkc_this_thread.switched)) {
    tkc_this_thread.switched = 0;
    tkc_cuda.cuCtxSetCurrent(tkc_this_thread.previous);
  }
}

CUstream tkc_stream(int device) { return (CUstream)TVMFFIEnvGetStream(CUDA_DEVICE_TYPE, device); }

static int set_device(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  if (TKC_UNLIKELY(num_args != 2 || tkc_integer(&args[0]) != CUDA_DEVICE_TYPE))
    return tkc_raise("RuntimeError", "%s: a CUDA artifact was asked to use a device of type %lld", tkc_function,
                     num_args > 0 ? (long long)tkc_integer(&args[0]) : -1LL);
  device_state* state = get_device(tkc_integer(&args[1]));
  if (TKC_UNLIKELY(state == NULL)) return -1;
  tkc_this_thread.device = (int)(state - devices);
  return enter(state);
}

/* ---- loading ---- */

static int refuse_capture(int device) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult code = tkc_cuda.cuStreamIsCapturing(tkc_stream(device), &status);
  int capturing = code == CUDA_SUCCESS ? status != CU_STREAM_CAPTURE_STATUS_NONE
                                       : code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                                             code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (!capturing) return 0;
  return tkc_raise("LoadError",
                   "%s is not loaded on CUDA device %d yet, and cannot be while a CUDA graph is being captured. Load it "
                   "before the capture begins: tkc.warmup(...), or call it once",
                   tkc_function, device);
}

static loaded_kernel* load_module(int device);

/* The kernels on a device whose context is current, loaded by whoever comes first. */
static loaded_kernel* get_kernels(int device) {
  device_state* state = &devices[device];
  loaded_kernel* kernels = atomic_load_explicit(&state->kernels, memory_order_acquire);
  if (!TKC_UNLIKELY(kernels == NULL)) return kernels;
  pthread_mutex_lock(&mutex);
  kernels = atomic_load_explicit(&state->kernels, memory_order_relaxed);
  if (kernels == NULL && refuse_capture(device) == 0) {
    /* Graphs that other threads capture meanwhile must not be broken by the load. */
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    tkc_cuda.cuThreadExchangeStreamCaptureMode(&mode);
    kernels = load_module(device);
    tkc_cuda.cuThreadExchangeStreamCaptureMode(&mode);
    if (kernels != NULL) atomic_store_explicit(&state->kernels, kernels, memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
  return kernels;
}

/* Memory for one device's kernels: never freed, as the artifact is never unloaded. */
static loaded_kernel* reserve_kernels(int device);

static loaded_kernel* load_module(int device) {
  CUmodule module;
  CUresult code = tkc_cuda.cuModuleLoadData(&module, tkc_device_binary);
  if (code != CUDA_SUCCESS) {
    tkc_raise_cuda("LoadError", code, "%s, built for %s (%llu bytes), does not load on CUDA device %d, an sm_%d",
                   tkc_function, tkc_arch, (unsigned long long)tkc_device_binary_size, device,
                   devices[device].capability);
    return NULL;
  }
  loaded_kernel* kernels = reserve_kernels(device);
  for (int32_t i = 0; kernels != NULL && i < tkc_num_kernels; ++i) {
    const tkc_kernel* kernel = &tkc_kernels[i];
    code = tkc_cuda.cuModuleGetFunction(&kernels[i].function, module, kernel->symbol);
    if (code == CUDA_SUCCESS && kernel->cluster[0] * kernel->cluster[1] * kernel->cluster[2] > 8)
      code = tkc_cuda.cuFuncSetAttribute(kernels[i].function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    if (code != CUDA_SUCCESS) {
      tkc_raise_cuda("LoadError", code, "%s: kernel %s does not load on CUDA device %d", tkc_function, kernel->symbol,
                     device);
      return NULL;
    }
  }
  return kernels;
}

static loaded_kernel* reserve_kernels(int device) {
  size_t size = (size_t)tkc_num_kernels * sizeof(loaded_kernel);
  void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) return memory;
  tkc_raise("LoadError", "%s: no memory for the kernels of CUDA device %d", tkc_function, device);
  return NULL;
}

/* ---- launching ---- */

/* The numbers of one launch. */
typedef struct {
  int64_t values[TKC_NUM_LAUNCH_PARAMS];
} launch_sizes;

static launch_sizes read_sizes(const tkc_kernel* kernel, const TVMFFIAny* values) {
  launch_sizes sizes = {{1, 1, 1, 1, 1, 1, kernel->cluster[0], kernel->cluster[1], kernel->cluster[2], 0}};
  for (int32_t i = 0; i < kernel->num_launch_params; ++i) sizes.values[kernel->launch_params[i]] = values[i].v_int64;
  return sizes;
}

static int is_empty(const launch_sizes* sizes) {
  return sizes->values[TKC_GRID_X] == 0 || sizes->values[TKC_GRID_Y] == 0 || sizes->values[TKC_GRID_Z] == 0;
}

/* One line that names a launch, for messages. */
typedef struct {
  char text[256];
} launch_name;

static launch_name describe(const tkc_kernel* kernel, const launch_sizes* sizes, int device) {
  launch_name name;
  const int64_t* v = sizes->values;
  snprintf(name.text, sizeof name.text,
           "kernel %s on CUDA device %d (grid %lld x %lld x %lld, block %lld x %lld x %lld, cluster %lld x %lld x %lld, "
           "%lld bytes of dynamic shared memory)",
           kernel->symbol, device, (long long)v[TKC_GRID_X], (long long)v[TKC_GRID_Y], (long long)v[TKC_GRID_Z],
           (long long)v[TKC_BLOCK_X], (long long)v[TKC_BLOCK_Y], (long long)v[TKC_BLOCK_Z],
           (long long)v[TKC_CLUSTER_X], (long long)v[TKC_CLUSTER_Y], (long long)v[TKC_CLUSTER_Z],
           (long long)v[TKC_DYNAMIC_SHARED_BYTES]);
  return name;
}

static int check_sizes(const tkc_kernel* kernel, const launch_sizes* sizes, int device) {
  static const int64_t most[TKC_NUM_LAUNCH_PARAMS] = {INT32_MAX, 65535, 65535, 1024, 1024, 64, 65535, 65535, 65535, INT32_MAX};
  static const char* const names[TKC_NUM_LAUNCH_PARAMS] = {
      "grid in x",    "grid in y",    "grid in z",    "block in x",           "block in y",
      "block in z",   "cluster in x", "cluster in y", "cluster in z", "bytes of dynamic shared memory"};
  for (int i = 0; i < TKC_NUM_LAUNCH_PARAMS; ++i) {
    int64_t least = i == TKC_DYNAMIC_SHARED_BYTES ? 0 : 1;
    if (TKC_UNLIKELY(sizes->values[i] < least || sizes->values[i] > most[i]))
      return tkc_raise("ValueError", "%s: %s out of range; expected: %lld to %lld, got: %lld",
                       describe(kernel, sizes, device).text, names[i], (long long)least, (long long)most[i],
                       (long long)sizes->values[i]);
  }
  return 0;
}

static int misaligned(const tkc_kernel* kernel, const tkc_argument* argument, const void* address) {
  return tkc_raise("ValueError", "argument `%s` of kernel %s is misaligned: address %p is not a multiple of %u bytes",
                   argument->name, kernel->symbol, address, argument->alignment_bytes);
}

/* Point at each argument's bytes. `floats` has room for the ones that are narrowed. */
static int read_arguments(const tkc_kernel* kernel, const TVMFFIAny* args, void** pointers, float* floats) {
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const tkc_argument* argument = &kernel->arguments[i];
    union {
      const TVMFFIAny* given;
      TVMFFIAny* passed;
    } value = {&args[i]}; /* the driver takes pointers to what it only reads */
    pointers[i] = &value.passed->v_int64;
    switch ((tkc_kind)argument->kind) {
      case TKC_POINTER:
        if (TKC_UNLIKELY((uintptr_t)args[i].v_ptr & (argument->alignment_bytes - 1)))
          return misaligned(kernel, argument, args[i].v_ptr);
        break;
      case TKC_TENSORMAP:
        pointers[i] = args[i].v_ptr;
        break;
      case TKC_FLOAT32:
        floats[i] = (float)tkc_real(&args[i]);
        pointers[i] = &floats[i];
        break;
      case TKC_INTEGER:
      case TKC_FLOAT64:
        break;
    }
  }
  return 0;
}

/* Opt into dynamic shared memory beyond what every kernel may use. It only grows. */
static int allow_shared(const tkc_kernel* kernel, loaded_kernel* loaded, const launch_sizes* sizes, int device) {
  unsigned int wanted = (unsigned int)sizes->values[TKC_DYNAMIC_SHARED_BYTES];
  if (!TKC_UNLIKELY(wanted > DEFAULT_SHARED_BYTES &&
                    wanted > atomic_load_explicit(&loaded->shared_bytes, memory_order_acquire)))
    return 0;
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&mutex);
  if (wanted > atomic_load_explicit(&loaded->shared_bytes, memory_order_relaxed)) {
    code = tkc_cuda.cuFuncSetAttribute(loaded->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)wanted);
    if (code == CUDA_SUCCESS) atomic_store_explicit(&loaded->shared_bytes, wanted, memory_order_release);
  }
  pthread_mutex_unlock(&mutex);
  if (code == CUDA_SUCCESS) return 0;
  return tkc_raise_cuda("RuntimeError", code, "%s needs more shared memory than the device gives one block",
                        describe(kernel, sizes, device).text);
}

enum { MAX_ATTRIBUTES = 3 };

static unsigned int read_attributes(const tkc_kernel* kernel, const launch_sizes* sizes, CUlaunchAttribute* attributes) {
  const int64_t* v = sizes->values;
  unsigned int count = 0;
  if (v[TKC_CLUSTER_X] * v[TKC_CLUSTER_Y] * v[TKC_CLUSTER_Z] > 1) {
    CUlaunchAttribute* attribute = &attributes[count++];
    attribute->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute->value.clusterDim.x = (unsigned int)v[TKC_CLUSTER_X];
    attribute->value.clusterDim.y = (unsigned int)v[TKC_CLUSTER_Y];
    attribute->value.clusterDim.z = (unsigned int)v[TKC_CLUSTER_Z];
  }
  if (kernel->cooperative) {
    CUlaunchAttribute* attribute = &attributes[count++];
    attribute->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attribute->value.cooperative = 1;
  }
  if (kernel->pdl && tkc_this_thread.pdl) {
    CUlaunchAttribute* attribute = &attributes[count++];
    attribute->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute->value.programmaticStreamSerializationAllowed = 1;
  }
  return count;
}

/* Launch one kernel: `self` is its row of the table; its arguments come first, then the launch parameters. */
static int launch(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)result;
  const tkc_kernel* kernel = self;
  int device = tkc_this_thread.device;
  if (TKC_UNLIKELY(num_args != kernel->num_arguments + kernel->num_launch_params))
    return tkc_raise("RuntimeError", "kernel %s takes %d arguments and %d launch parameters, got %d values",
                     kernel->symbol, kernel->num_arguments, kernel->num_launch_params, num_args);
  launch_sizes sizes = read_sizes(kernel, args + kernel->num_arguments);
  if (is_empty(&sizes)) return 0;
  if (check_sizes(kernel, &sizes, device) != 0) return -1;
  void* pointers[kernel->num_arguments + 1];
  float floats[kernel->num_arguments + 1];
  if (read_arguments(kernel, args, pointers, floats) != 0) return -1;
  loaded_kernel* kernels = get_kernels(device);
  if (TKC_UNLIKELY(kernels == NULL)) return -1;
  loaded_kernel* loaded = &kernels[kernel - tkc_kernels];
  if (allow_shared(kernel, loaded, &sizes, device) != 0) return -1;

  CUlaunchAttribute attributes[MAX_ATTRIBUTES];
  CUlaunchConfig config = {
      .gridDimX = (unsigned int)sizes.values[TKC_GRID_X],
      .gridDimY = (unsigned int)sizes.values[TKC_GRID_Y],
      .gridDimZ = (unsigned int)sizes.values[TKC_GRID_Z],
      .blockDimX = (unsigned int)sizes.values[TKC_BLOCK_X],
      .blockDimY = (unsigned int)sizes.values[TKC_BLOCK_Y],
      .blockDimZ = (unsigned int)sizes.values[TKC_BLOCK_Z],
      .sharedMemBytes = (unsigned int)sizes.values[TKC_DYNAMIC_SHARED_BYTES],
      .hStream = tkc_stream(device),
      .attrs = attributes,
      .numAttrs = read_attributes(kernel, &sizes, attributes),
  };
  CUresult code = tkc_cuda.cuLaunchKernelEx(&config, loaded->function, pointers, NULL);
  if (TKC_UNLIKELY(code != CUDA_SUCCESS && code != CUDA_ERROR_DEINITIALIZED)) /* the process is ending */
    return tkc_raise_cuda("RuntimeError", code, "%s does not launch", describe(kernel, &sizes, device).text);
  return 0;
}

/* ---- what the host function and the loader see ---- */

TVMFFISafeCallType tkc_cuda_builtin(const char* name) {
  static const tkc_builtin builtins[] = {
      {"__tvm_set_device", set_device},
      {"__tvm_tensormap_create_tiled", tkc_tensormap_tiled},
      {"__tvm_tensormap_create_im2col", tkc_tensormap_im2col},
      {"__tvm_cuda_stream_set_access_policy_window", tkc_set_access_policy_window},
      {"__tvm_cuda_stream_reset_access_policy_window", tkc_reset_access_policy_window},
  };
  for (size_t i = 0; i < sizeof builtins / sizeof builtins[0]; ++i)
    if (strcmp(builtins[i].name, name) == 0) return builtins[i].call;
  return NULL;
}

static const tkc_kernel* find_kernel(const char* symbol) {
  for (int32_t i = 0; i < tkc_num_kernels; ++i)
    if (strcmp(tkc_kernels[i].symbol, symbol) == 0) return &tkc_kernels[i];
  return NULL;
}

/* The host function keeps what it gets here, so each name is asked for once, or by a few threads at once. */
int TVMBackendGetFuncFromEnv(void* context, const char* name, TVMFFIObjectHandle* out) {
  (void)context;
  TVMFFISafeCallType builtin = tkc_cuda_builtin(name);
  if (builtin != NULL) return tkc_function_handle(NULL, builtin, out);
  const tkc_kernel* kernel = find_kernel(name);
  if (kernel != NULL) return tkc_function_handle((void*)(uintptr_t)kernel, launch, out);
  return tkc_raise("RuntimeError", "%s asks for the function `%s`, which the CUDA runtime does not have", tkc_function,
                   name);
}

static int32_t call_host(void* args, int num_args, void* result, int pdl) {
  tkc_this_thread.pdl = pdl;
  int32_t status = tkc_host_main(NULL, args, num_args, result);
  leave();
  return status;
}

/* Check the arguments and launch on the caller's current stream. */
TKC_EXPORT int32_t __tvm_ffi_main(void* self, void* args, int num_args, void* result) {
  (void)self;
  return call_host(args, num_args, result, 0);
}

/* The same, with programmatic dependent launch for the kernels that support it. */
TKC_EXPORT int32_t __tvm_ffi_main_pdl(void* self, void* args, int num_args, void* result) {
  (void)self;
  return call_host(args, num_args, result, 1);
}

/* Load every kernel on one device, given by its index, and launch nothing. */
TKC_EXPORT int32_t __tkc_load(void* self, void* args, int num_args, void* result) {
  (void)self, (void)result;
  const TVMFFIAny* values = args;
  if (num_args != 1 || (values[0].type_index != kTVMFFIInt && values[0].type_index != kTVMFFIDevice))
    return tkc_raise("TypeError", "%s: loading takes one argument, the index of a CUDA device", tkc_function);
  int is_index = values[0].type_index == kTVMFFIInt;
  device_state* state = get_device(is_index ? values[0].v_int64 : values[0].v_device.device_id);
  if (state == NULL || enter(state) != 0) return -1;
  loaded_kernel* kernels = get_kernels((int)(state - devices));
  leave();
  return kernels != NULL ? 0 : -1;
}
