/* TMA descriptors: the host function describes a tensor, the driver writes the 128 bytes that a kernel takes. */
#include <stdio.h>

#include "cuda.h"

enum { MAX_RANK = 5 };

/* Both kinds of descriptor. Strides are in bytes, the innermost first; the driver takes them from the second on. */
typedef struct {
  CUtensorMap* map;
  int type;
  uint32_t rank;
  void* address;
  uint64_t dims[MAX_RANK], strides[MAX_RANK];
  uint32_t box[MAX_RANK], element_strides[MAX_RANK];
  int lower[MAX_RANK], upper[MAX_RANK];
  uint32_t pixels, channels;
  int interleave, swizzle, promotion, fill;
} tensormap;

/* The values of a packed call, one after the other. */
typedef struct {
  const TVMFFIAny* next;
} reader;

static int64_t take(reader* values) { return tkc_integer(values->next++); }
static void* take_pointer(reader* values) { return tkc_pointer(values->next++); }
static void take_u64(reader* values, uint64_t* out, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) out[i] = (uint64_t)take(values);
}
static void take_u32(reader* values, uint32_t* out, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) out[i] = (uint32_t)take(values);
}
static void take_int(reader* values, int* out, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) out[i] = (int)take(values);
}

static int take_head(reader* values, tensormap* made, int32_t num_args, uint32_t least_rank) {
  if (num_args < 8) return tkc_raise("RuntimeError", "%s: a tensor map of %d values", tkc_function, num_args);
  made->map = take_pointer(values);
  made->type = (int)take(values);
  int64_t rank = take(values);
  if (rank < least_rank || rank > MAX_RANK)
    return tkc_raise("RuntimeError", "%s: a tensor map of rank %lld; expected: %u to %d", tkc_function, (long long)rank,
                     least_rank, MAX_RANK);
  made->rank = (uint32_t)rank;
  made->address = take_pointer(values);
  return 0;
}

static void take_tail(reader* values, tensormap* made) {
  made->interleave = (int)take(values);
  made->swizzle = (int)take(values);
  made->promotion = (int)take(values);
  made->fill = (int)take(values);
}

static int check_count(const char* kind, uint32_t rank, int32_t expected, int32_t num_args) {
  if (num_args == expected) return 0;
  return tkc_raise("RuntimeError", "%s: a%s tensor map of rank %u takes %d values, got %d", tkc_function, kind, rank,
                   expected, num_args);
}

/* What tensors do wrong most often, by name: the driver says only that a value is invalid. */
static int check_tensor(const tensormap* made) {
  if ((uintptr_t)made->address % 16 != 0)
    return tkc_raise("ValueError",
                     "%s: a tensor read by TMA is misaligned: address %p is not a multiple of 16 bytes", tkc_function,
                     made->address);
  for (uint32_t i = 0; i < made->rank; ++i) {
    if (made->dims[i] == 0 || made->dims[i] > (uint64_t)1 << 32)
      return tkc_raise("ValueError", "%s: dimension %u (innermost first) of a tensor read by TMA is %llu; expected: 1 to 2^32",
                       tkc_function, i, (unsigned long long)made->dims[i]);
    if (i > 0 && (made->strides[i] % 16 != 0 || made->strides[i] >> 40 != 0))
      return tkc_raise("ValueError",
                       "%s: stride %u (innermost first) of a tensor read by TMA is %llu bytes; expected: a multiple of "
                       "16, less than 2^40",
                       tkc_function, i, (unsigned long long)made->strides[i]);
  }
  return 0;
}

static int refused(CUresult code, const char* kind, const tensormap* made) {
  char dims[256];
  size_t used = 0;
  for (uint32_t i = 0; i < made->rank && used < sizeof dims; ++i)
    used += (size_t)snprintf(dims + used, sizeof dims - used, "%s%llu (stride %llu bytes, box %u)", i > 0 ? ", " : "",
                             (unsigned long long)made->dims[i], (unsigned long long)made->strides[i], made->box[i]);
  return tkc_raise_cuda("RuntimeError", code,
                        "%s: the driver refuses a%s tensor map at address %p, element type %d, dimensions innermost "
                        "first %s, interleave %d, swizzle %d, fill %d",
                        tkc_function, kind, made->address, made->type, dims, made->interleave, made->swizzle, made->fill);
}

int tkc_tensormap_tiled(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  tensormap made = {0};
  reader values = {args};
  if (take_head(&values, &made, num_args, 1) != 0) return -1;
  if (check_count(" tiled", made.rank, (int32_t)(8 + 4 * made.rank), num_args) != 0) return -1;
  take_u64(&values, made.dims, made.rank);
  take_u64(&values, made.strides, made.rank);
  take_u32(&values, made.box, made.rank);
  take_u32(&values, made.element_strides, made.rank);
  take_tail(&values, &made);
  if (check_tensor(&made) != 0) return -1;
  CUresult code = tkc_cuda.cuTensorMapEncodeTiled(made.map, made.type, made.rank, made.address, made.dims,
                                                  made.strides + 1, made.box, made.element_strides, made.interleave,
                                                  made.swizzle, made.promotion, made.fill);
  return code == CUDA_SUCCESS ? 0 : refused(code, " tiled", &made);
}

int tkc_tensormap_im2col(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  tensormap made = {0};
  reader values = {args};
  if (take_head(&values, &made, num_args, 3) != 0) return -1;
  if (check_count("n im2col", made.rank, (int32_t)(6 + 5 * made.rank), num_args) != 0) return -1;
  take_u64(&values, made.dims, made.rank);
  take_u64(&values, made.strides, made.rank);
  take_u32(&values, made.element_strides, made.rank);
  take_int(&values, made.lower, made.rank - 2);
  take_int(&values, made.upper, made.rank - 2);
  made.pixels = (uint32_t)take(&values);
  made.channels = (uint32_t)take(&values);
  take_tail(&values, &made);
  if (check_tensor(&made) != 0) return -1;
  CUresult code = tkc_cuda.cuTensorMapEncodeIm2col(made.map, made.type, made.rank, made.address, made.dims,
                                                   made.strides + 1, made.lower, made.upper, made.channels, made.pixels,
                                                   made.element_strides, made.interleave, made.swizzle, made.promotion,
                                                   made.fill);
  return code == CUDA_SUCCESS ? 0 : refused(code, "n im2col", &made);
}
