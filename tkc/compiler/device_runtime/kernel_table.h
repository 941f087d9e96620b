/* What the device runtime knows of one artifact: its kernels, and how each is launched. */
#ifndef TKC_KERNEL_TABLE_H
#define TKC_KERNEL_TABLE_H

#include <stdint.h>

typedef enum {
  TKC_POINTER,    /* device address; alignment_bytes is what the kernel relies on */
  TKC_TENSORMAP,  /* 128 bytes of TMA descriptor, passed by value */
  TKC_INTEGER,    /* int8 to uint64 and bool: the low bytes of the 64 that arrive */
  TKC_FLOAT32,
  TKC_FLOAT64,
} tkc_kind;

/* Numbers that follow a kernel's arguments, in the order of its `launch_params`. */
typedef enum {
  TKC_GRID_X,
  TKC_GRID_Y,
  TKC_GRID_Z,
  TKC_BLOCK_X,
  TKC_BLOCK_Y,
  TKC_BLOCK_Z,
  TKC_CLUSTER_X,
  TKC_CLUSTER_Y,
  TKC_CLUSTER_Z,
  TKC_DYNAMIC_SHARED_BYTES,
  TKC_NUM_LAUNCH_PARAMS,
} tkc_launch_param;

typedef struct {
  const char* name;
  uint32_t alignment_bytes;
  uint8_t kind;
  uint8_t size_bytes; /* as the kernel takes it */
} tkc_argument;

typedef struct {
  const char* symbol;
  const tkc_argument* arguments;
  const uint8_t* launch_params;
  int32_t num_arguments;
  int32_t num_launch_params;
  uint32_t cluster[3];  /* unless launch_params say */
  uint8_t cooperative;  /* all blocks must be resident at once */
  uint8_t pdl;          /* waits for its predecessor by itself */
} tkc_kernel;

extern const tkc_kernel tkc_kernels[];
extern const int32_t tkc_num_kernels;
extern const char tkc_function[]; /* name of the host function, for messages */
extern const char tkc_arch[];     /* what the device binary is for, such as sm_90a */

#endif
