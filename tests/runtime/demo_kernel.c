/* A hand-made artifact in the shape of a linked one: out[i, j] = x[i, j] * factor + BIAS, refused unless every
   argument is as its spec says. Strict on strides on purpose: even where they mean nothing. */
#include <stdint.h>
#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))

static int32_t refuse(const char* why) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", why);
  return -1;
}

static DLTensor* tensor(const TVMFFIAny* arg) {
  return arg->type_index == kTVMFFITensor ? (DLTensor*)((char*)arg->v_ptr + sizeof(TVMFFIObject)) : 0;
}

static int matches(const DLTensor* t, int64_t rows) {
  return t && t->ndim == 2 && t->dtype.code == kDLFloat && t->dtype.bits == 32 && t->shape[0] == rows &&
         t->shape[1] == WIDTH && t->strides[0] == WIDTH && t->strides[1] == 1 && (uintptr_t)t->data % 16 == 0;
}

static int32_t run(const TVMFFIAny* args, int32_t num_args, float bias) {
  if (num_args != 3) return refuse("num_args");
  DLTensor *x = tensor(&args[0]), *out = tensor(&args[1]);
  if (!x || x->ndim != 2 || !matches(x, x->shape[0]) || !matches(out, x->shape[0])) return refuse("tensors");
  if (args[2].type_index != kTVMFFIFloat && args[2].type_index != kTVMFFIInt) return refuse("factor");
  double factor = args[2].type_index == kTVMFFIFloat ? args[2].v_float64 : (double)args[2].v_int64;
  if (factor == 13) return refuse("the device is on fire");
  for (int64_t i = 0; i < x->shape[0] * WIDTH; i++)
    ((float*)out->data)[i] = ((float*)x->data)[i] * (float)factor + bias;
  return 0;
}

EXPORT int32_t __tvm_ffi_main(void* self, void* args, int32_t num_args, void* result) {
  (void)self, (void)result;
  return run(args, num_args, 0);
}

#ifdef WITH_PDL
EXPORT int32_t __tvm_ffi_main_pdl(void* self, void* args, int32_t num_args, void* result) {
  (void)self, (void)result;
  return run(args, num_args, 1000);
}

EXPORT int32_t __tkc_load(void* self, void* args, int32_t num_args, void* result) {
  (void)self, (void)result;
  if (num_args != 1 || ((TVMFFIAny*)args)->v_int64 == 7) return refuse("no such device");
  return 0;
}
#endif
