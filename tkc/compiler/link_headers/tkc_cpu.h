/* What code generated for the CPU relies on: C's headers, `half`, and, in device code, clamp. */
#ifndef TKC_CPU_H
#define TKC_CPU_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef __cplusplus
typedef uint16_t half; /* the host part passes addresses alone */
#else

namespace tl {

template <typename To, typename From>
static inline To bits_as(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

/* `x` between `low` and `high`; NaN stays NaN. */
template <typename T>
static inline T clamp(T x, T low, T high) {
  if (x < low) return low;
  if (x > high) return high;
  return x;
}

}  // namespace tl

/* IEEE binary16. Every operation is done in binary32 and rounded to nearest even, which equals the exact
   result rounded once for + - * /. */
struct half {
  uint16_t bits;

  half() = default;
  template <typename T>
  half(T value) : bits(round((float)value)) {}

  operator float() const {
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return tl::bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    const float scaled = tl::bits_as<float>(magnitude << 13) * 0x1p112f; /* moves the exponent's bias */
    return tl::bits_as<float>(sign | tl::bits_as<uint32_t>(scaled));
  }

 private:
  static uint16_t round(float value) {
    const uint32_t whole = tl::bits_as<uint32_t>(value), sign = whole >> 16 & 0x8000u;
    const uint32_t magnitude = whole & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (magnitude < 0x38800000u) { /* subnormal: adding a half lets the adder round */
      const float shifted = tl::bits_as<float>(magnitude) + 0.5f;
      return (uint16_t)(sign | (tl::bits_as<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
  }
};

static inline half operator+(half a, half b) { return half((float)a + (float)b); }
static inline half operator-(half a, half b) { return half((float)a - (float)b); }
static inline half operator*(half a, half b) { return half((float)a * (float)b); }
static inline half operator/(half a, half b) { return half((float)a / (float)b); }
static inline half operator-(half a) { return half(-(float)a); }

#endif
#endif
