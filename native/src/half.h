// Reductions of 16-bit floating types, which MPI lacks: each step is computed in float32.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace collops {

struct BFloat16 {
  static float widen(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static std::uint16_t narrow(float value) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    if (std::isnan(value)) return static_cast<std::uint16_t>((wide >> 16) | 0x40);
    return static_cast<std::uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);  // to nearest, ties to even
  }
};

struct Float16 {
  static float widen(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const int fraction = bits & 0x3ff;
    float value;
    if (exponent == 0x1f) {
      value = fraction ? NAN : INFINITY;
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(fraction), -24);
    } else {
      value = std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
    }
    return bits & 0x8000 ? -value : value;
  }
  static std::uint16_t narrow(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00;
    if (size >= 65520.0F) return sign | 0x7c00;  // rounds to infinity
    if (size < 0x1p-14F) {                       // subnormal: a multiple of 2^-24
      return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(size, 24))));
    }
    int exponent;
    const float mantissa = std::frexp(size, &exponent);  // size = mantissa * 2^exponent, mantissa in [0.5, 1)
    const auto rounded = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(mantissa, 11)));  // may carry to 2048
    return static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(exponent + 13) << 10) + rounded));
  }
};

struct Sum {
  static float apply(float a, float b) { return a + b; }
};
struct Product {
  static float apply(float a, float b) { return a * b; }
};
struct Minimum {  // propagates NaN, as in NumPy
  static float apply(float a, float b) { return std::isnan(a) || a < b ? a : b; }
};
struct Maximum {
  static float apply(float a, float b) { return std::isnan(a) || a > b ? a : b; }
};

// An MPI_User_function: result = incoming op result.
template <class Half, class Op>
void reduce_half(void* incoming, void* result, int* count, void* /*datatype*/) {
  const auto* left = static_cast<const std::uint16_t*>(incoming);
  auto* right = static_cast<std::uint16_t*>(result);
  for (int i = 0; i < *count; ++i) right[i] = Half::narrow(Op::apply(Half::widen(left[i]), Half::widen(right[i])));
}

}  // namespace collops
