/* CANN's libascendcl without a device: it prints what it is asked to do. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
  int32_t id;
  uint32_t value[4];
} launch_attribute;

typedef struct {
  launch_attribute* attributes;
  size_t count;
} launch_config;

int32_t aclrtSetDevice(int32_t device) {
  printf("aclrtSetDevice %d\n", device);
  return device < 2 ? 0 : 107001;
}

int32_t aclrtBinaryLoadFromData(const void* data, size_t size, const void* options, void** binary) {
  printf("aclrtBinaryLoadFromData %.3s %zu %s\n", (const char*)data + 1, size, options == NULL ? "no options" : "options");
  *binary = (void*)0x20;
  return 0;
}

int32_t aclrtBinaryGetFunction(void* binary, const char* name, void** function) {
  printf("aclrtBinaryGetFunction %p %s\n", binary, name);
  *function = (void*)0x30;
  return 0;
}

int32_t aclrtLaunchKernelWithHostArgs(void* function, uint32_t num_blocks, void* stream, launch_config* config,
                                      void* arguments, size_t size, void* reserved, size_t reserved_size) {
  printf("aclrtLaunchKernelWithHostArgs %p blocks=%u stream=%p", function, num_blocks, stream);
  for (size_t i = 0; config != NULL && i < config->count; ++i)
    printf(" attribute%d=%u", config->attributes[i].id, config->attributes[i].value[0]);
  printf(" reserved=%p,%zu arguments=", reserved, reserved_size);
  for (size_t i = 0; i < size; ++i) printf("%02x", ((unsigned char*)arguments)[i]);
  printf("\n");
  return 0;
}

const char* aclGetRecentErrMsg(void) { return "words of the fake"; }
