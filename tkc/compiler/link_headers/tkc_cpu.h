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

/* Conversions of 8-bit floats, as the functions that generated code calls. They round to nearest even, and
   saturate as CUDA's do: what is too large, infinity included, becomes the largest finite number. */
namespace tl {

template <int mantissa_bits, int bias, uint32_t largest>
static inline uint8_t to_8_bits(float value) {
  const uint32_t whole = bits_as<uint32_t>(value), sign = whole >> 24 & 0x80u, magnitude = whole & 0x7fffffffu;
  const uint32_t smallest_normal = (uint32_t)(128 - bias) << 23;
  if (magnitude > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
  uint32_t code;
  if (magnitude < smallest_normal) { /* subnormal: the adder rounds at the last bit */
    const uint32_t unit = (uint32_t)(127 + 1 - bias - mantissa_bits + 23) << 23;
    code = bits_as<uint32_t>(bits_as<float>(magnitude) + bits_as<float>(unit)) - unit;
  } else {
    const int dropped = 23 - mantissa_bits;
    const uint32_t odd = magnitude >> dropped & 1u, half_unit = (1u << (dropped - 1)) - 1u;
    code = (magnitude - ((uint32_t)(127 - bias) << 23) + half_unit + odd) >> dropped;
  }
  return (uint8_t)(sign | (code > largest ? largest : code));
}

}  // namespace tl

extern "C" {

static inline uint8_t tkc_to_float8_e4m3fn(float value) { return tl::to_8_bits<3, 7, 0x7eu>(value); }

static inline float tkc_from_float8_e4m3fn(uint8_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return tl::bits_as<float>(sign | 0x7fc00000u);
  return tl::bits_as<float>(sign | tl::bits_as<uint32_t>(tl::bits_as<float>(magnitude << 20) * 0x1p120f));
}

static inline uint8_t tkc_to_float8_e5m2(float value) { return tl::to_8_bits<2, 15, 0x7bu>(value); }

static inline float tkc_from_float8_e5m2(uint8_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  if (magnitude >= 0x7cu) return tl::bits_as<float>(sign | 0x7f800000u | (magnitude & 3u) << 21);
  return tl::bits_as<float>(sign | tl::bits_as<uint32_t>(tl::bits_as<float>(magnitude << 21) * 0x1p112f));
}

static inline float tkc_float32_of_bits(uint32_t bits) { return tl::bits_as<float>(bits); }
static inline double tkc_float64_of_bits(uint64_t bits) { return tl::bits_as<double>(bits); }

static inline bool tkc_isfinite_float32(float value) { return __builtin_isfinite(value); }
static inline bool tkc_isfinite_float64(double value) { return __builtin_isfinite(value); }
static inline bool tkc_isinf_float32(float value) { return __builtin_isinf(value); }
static inline bool tkc_isinf_float64(double value) { return __builtin_isinf(value); }

static inline int32_t tkc_clz_int32(int32_t value) { return value ? __builtin_clz((uint32_t)value) : 32; }
static inline int32_t tkc_clz_uint32(uint32_t value) { return value ? __builtin_clz(value) : 32; }
static inline int32_t tkc_clz_int64(int64_t value) { return value ? __builtin_clzll((uint64_t)value) : 64; }
static inline int32_t tkc_clz_uint64(uint64_t value) { return value ? __builtin_clzll(value) : 64; }

static inline int32_t tkc_popcount_int32(int32_t value) { return __builtin_popcount((uint32_t)value); }
static inline uint32_t tkc_popcount_uint32(uint32_t value) { return (uint32_t)__builtin_popcount(value); }
static inline int64_t tkc_popcount_int64(int64_t value) { return __builtin_popcountll((uint64_t)value); }
static inline uint64_t tkc_popcount_uint64(uint64_t value) { return (uint64_t)__builtin_popcountll(value); }

}  /* extern "C" */


#endif
#endif
