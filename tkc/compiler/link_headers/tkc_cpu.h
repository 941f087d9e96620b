/* What code generated for the CPU relies on: C's headers, `half`, and, in device code, clamp. */
#ifndef TKC_CPU_H
#define TKC_CPU_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef _Float16 half;

#ifdef __cplusplus
namespace tl {

/* `x` between `low` and `high`; NaN stays NaN. */
template <typename T>
static inline T clamp(T x, T low, T high) {
  if (x < low) return low;
  if (x > high) return high;
  return x;
}

}  // namespace tl
#endif

#endif
