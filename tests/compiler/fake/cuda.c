/* A CUDA driver without a device: it writes down what it is asked to do, one line a call.
 *
 * Compiled against NVIDIA's own cuda.h, so that the names and types are the driver's. What it does is set by
 * environment variables: FAKE_CUDA_LOG the file to write to; FAKE_CUDA_DEVICES how many there are;
 * FAKE_CUDA_CAPABILITY such as 90; FAKE_CUDA_FAIL functions and what they return, such as
 * "cuLaunchKernelEx=700,cuInit=100"; FAKE_CUDA_CAPTURING makes every stream one that is captured;
 * FAKE_CUDA_ARGUMENTS sizes of a kernel's arguments, such as "8,8,4"; FAKE_CUDA_SLOW makes loading take a while. */
#define _GNU_SOURCE
#include <cuda.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local CUcontext current;
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static const char* setting(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value != NULL && value[0] != '\0' ? value : otherwise;
}

/* One write a line, appended: lines of several threads do not mix. */
static void note(const char* format, ...) {
  char line[8192];
  va_list rest;
  va_start(rest, format);
  int length = vsnprintf(line, sizeof line - 1, format, rest);
  va_end(rest);
  line[length++] = '\n';
  int file = open(setting("FAKE_CUDA_LOG", "/dev/null"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (write(file, line, (size_t)length) != length) abort();
  close(file);
}

static CUresult answer(const char* name) {
  const char* at = strstr(setting("FAKE_CUDA_FAIL", ""), name);
  return at != NULL && at[strlen(name)] == '=' ? (CUresult)atoi(at + strlen(name) + 1) : CUDA_SUCCESS;
}

static int device_of(CUcontext context) { return (int)((size_t)context - 0x1000); }

CUresult cuInit(unsigned int flags) {
  note("cuInit flags=%u", flags);
  return answer("cuInit");
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  *name = code == CUDA_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  (void)code;
  *text = "words of the fake";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = atoi(setting("FAKE_CUDA_DEVICES", "2"));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  int count;
  cuDeviceGetCount(&count);
  *device = ordinal;
  return ordinal < count ? answer("cuDeviceGet") : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  int capability = atoi(setting("FAKE_CUDA_CAPABILITY", "90"));
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = capability / 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = capability % 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      *value = 1 << 20;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
      *value = 1 << 27;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  note("cuDevicePrimaryCtxRetain device=%d", device);
  *context = (CUcontext)(size_t)(0x1000 + device);
  return answer("cuDevicePrimaryCtxRetain");
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  note("cuCtxSetCurrent device=%d", context != NULL ? device_of(context) : -1);
  current = context;
  return answer("cuCtxSetCurrent");
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  *value = limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE ? 4096 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  note("cuCtxSetLimit limit=%d value=%zu", limit, value);
  return answer("cuCtxSetLimit");
}

CUresult cuCtxResetPersistingL2Cache(void) {
  note("cuCtxResetPersistingL2Cache");
  return CUDA_SUCCESS;
}

struct CUmod_st {
  int device;
};

struct CUfunc_st {
  CUmodule module;
  char name[128];
};

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  note("cuModuleLoadData device=%d magic=%.3s mode=%d", device_of(current), (const char*)image + 1, capture_mode);
  if (getenv("FAKE_CUDA_SLOW") != NULL) usleep(50000);
  *module = malloc(sizeof **module);
  (*module)->device = device_of(current);
  return answer("cuModuleLoadData");
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  note("cuModuleGetFunction name=%s device=%d", name, module->device);
  *function = calloc(1, sizeof **function);
  (*function)->module = module;
  strncpy((*function)->name, name, sizeof(*function)->name - 1);
  return answer("cuModuleGetFunction");
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  note("cuFuncSetAttribute name=%s attribute=%d value=%d device=%d", function->name, attribute, value,
       function->module->device);
  return answer("cuFuncSetAttribute");
}

static int write_attribute(char* text, size_t room, const CUlaunchAttribute* attribute) {
  const CUlaunchAttributeValue* value = &attribute->value;
  switch (attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      return snprintf(text, room, " cluster=%u,%u,%u", value->clusterDim.x, value->clusterDim.y, value->clusterDim.z);
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      return snprintf(text, room, " cooperative=%d", value->cooperative);
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      return snprintf(text, room, " pdl=%d", value->programmaticStreamSerializationAllowed);
    default:
      return snprintf(text, room, " attribute%d=?", attribute->id);
  }
}

static size_t write_arguments(char* text, size_t room, void** arguments) {
  size_t used = 0;
  const char* sizes = setting("FAKE_CUDA_ARGUMENTS", "");
  for (int i = 0; sizes[0] != '\0'; ++i) {
    char* end;
    long size = strtol(sizes, &end, 10);
    used += (size_t)snprintf(text + used, room - used, " arg%d=", i);
    for (long byte = 0; byte < size; ++byte)
      used += (size_t)snprintf(text + used, room - used, "%02x", ((unsigned char*)arguments[i])[byte]);
    sizes = *end == ',' ? end + 1 : end;
  }
  return used;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** arguments, void** extra) {
  char rest[4096] = "";
  size_t used = 0;
  for (unsigned int i = 0; i < c->numAttrs; ++i)
    used += (size_t)write_attribute(rest + used, sizeof rest - used, &c->attrs[i]);
  write_arguments(rest + used, sizeof rest - used, arguments);
  note("cuLaunchKernelEx name=%s device=%d current=%d grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p extra=%p%s",
       function->name, function->module->device, device_of(current), c->gridDimX, c->gridDimY, c->gridDimZ,
       c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, (void*)c->hStream, (void*)extra, rest);
  return answer("cuLaunchKernelEx");
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  note("cuStreamIsCapturing stream=%p", (void*)stream);
  *status = getenv("FAKE_CUDA_CAPTURING") != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return answer("cuStreamIsCapturing");
}

CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  const CUaccessPolicyWindow* window = &value->accessPolicyWindow;
  note("cuStreamSetAttribute stream=%p attribute=%d base=%p bytes=%zu ratio=%.2f hit=%d miss=%d", (void*)stream, attribute,
       window->base_ptr, window->num_bytes, (double)window->hitRatio, window->hitProp, window->missProp);
  return answer("cuStreamSetAttribute");
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  CUstreamCaptureMode before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

static size_t write_numbers(char* text, size_t room, const char* name, const cuuint64_t* wide, const cuuint32_t* narrow,
                            cuuint32_t count) {
  size_t used = (size_t)snprintf(text, room, " %s=", name);
  for (cuuint32_t i = 0; i < count; ++i)
    used += (size_t)snprintf(text + used, room - used, "%s%llu", i > 0 ? "," : "",
                             wide != NULL ? (unsigned long long)wide[i] : (unsigned long long)narrow[i]);
  return used;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  char rest[1024];
  size_t used = write_numbers(rest, sizeof rest, "dims", dims, NULL, rank);
  used += write_numbers(rest + used, sizeof rest - used, "strides", strides, NULL, rank - 1);
  used += write_numbers(rest + used, sizeof rest - used, "box", NULL, box, rank);
  write_numbers(rest + used, sizeof rest - used, "element_strides", NULL, element_strides, rank);
  note("cuTensorMapEncodeTiled aligned=%d type=%d rank=%u address=%p%s interleave=%d swizzle=%d promotion=%d fill=%d",
       (size_t)map % 64 == 0, type, rank, address, rest, interleave, swizzle, promotion, fill);
  memset(map, 0xa0 + (int)rank, sizeof *map);
  return answer("cuTensorMapEncodeTiled");
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* element_strides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  char rest[1024];
  size_t used = write_numbers(rest, sizeof rest, "dims", dims, NULL, rank);
  used += write_numbers(rest + used, sizeof rest - used, "strides", strides, NULL, rank - 1);
  write_numbers(rest + used, sizeof rest - used, "element_strides", NULL, element_strides, rank);
  note("cuTensorMapEncodeIm2col type=%d rank=%u address=%p%s lower=%d,%d upper=%d,%d channels=%u pixels=%u interleave=%d "
       "swizzle=%d promotion=%d fill=%d",
       type, rank, address, rest, lower[0], lower[1], upper[0], upper[1], channels, pixels, interleave, swizzle, promotion,
       fill);
  memset(map, 0xc0 + (int)rank, sizeof *map);
  return answer("cuTensorMapEncodeIm2col");
}
