/* Loads and launches through the Ascend runtime, in the order that an artifact would. */
#include "host.h"

extern int32_t __tkc_load(void* self, void* args, int num_args, void* result);

int32_t tkc_host_main(void* self, void* args, int num_args, void* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  return 0;
}

/* The arguments of the test's kernel, then grid x, grid y and the bytes of dynamic buffer. */
static int launch(int64_t address, int64_t blocks, int64_t buffer_bytes) {
  TVMFFIAny values[] = {integer(address), integer(-2), integer(0),           integer(1),
                        integer(7),       integer(blocks), integer(2), integer(buffer_bytes)};
  values[0].type_index = kTVMFFIOpaquePtr;
  values[2].type_index = kTVMFFIFloat;
  values[2].v_float64 = 0.5;
  return call("k", values, 8);
}

int main(void) {
  TVMFFIAny first = integer(1), absent = integer(5), device[] = {integer(12), integer(1)};
  int failures = __tkc_load(NULL, &first, 1, NULL) != 0;
  failures += call("__tvm_set_device", device, 2) != 0;
  failures += launch(0x10000, 3, 0) != 0;
  failures += launch(0x10000, 3, 512) != 0;
  failures += launch(0x10000, 0, 0) != 0;
  failures += launch(0x10008, 3, 0) == 0;
  failures += launch(0x10000, (int64_t)1 << 32, 0) == 0;
  failures += __tkc_load(NULL, &absent, 1, NULL) == 0;
  return failures;
}
