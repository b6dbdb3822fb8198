// Packed weights as operands of a matrix unit (see `backends.triton.packed` for how they lie).
//
// Macros: LOW, HIGH (bits of the planes), GROUP, OFFSET, MINIMUM, MULTIPLES of the layout. Operands are bfloat16: codes are
// exact, scales and minimums are rounded to it.
#pragma once

#include "intrinsics.cuh"

constexpr int LOW_BITS = LOW == 8 ? 4 : LOW;    // eight bits are two planes of words
constexpr int HIGH_BITS = LOW == 8 ? 4 : HIGH;
constexpr int SCALE_BYTES = MULTIPLES ? (MULTIPLES == 2 ? 2 : 1) : (MINIMUM ? 4 : 2);

constexpr unsigned BASE = 0x43004300u;  // 128, twice: a whole number in the lowest bits is added to it
constexpr unsigned ONE = 0x3F803F80u;
constexpr unsigned MINUS_ZERO = 0x80008000u;

// A plane's words of a group of 32: four octs.
template <int BITS>
struct Group {
  unsigned words[BITS > 2 ? 4 : BITS];

  __device__ __forceinline__ void load(const unsigned char* at) {
    if constexpr (BITS == 4) {
      uint4 four = *reinterpret_cast<const uint4*>(at);
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else if constexpr (BITS == 2) {
      uint2 two = *reinterpret_cast<const uint2*>(at);
      words[0] = two.x, words[1] = two.y;
    } else {
      words[0] = *reinterpret_cast<const unsigned*>(at);
    }
  }

  // The word of an oct: its bits lowest, with others above in a plane of one bit or two.
  __device__ __forceinline__ unsigned word(int oct) const {
    if constexpr (BITS == 4) return words[oct];
    if constexpr (BITS == 2) return words[oct / 2] >> (oct % 2 * 16);
    return words[0] >> (oct * 8) & 0xFF;
  }
};

struct Masks {
  unsigned low = in_register(LOW == 4 ? 0x000F000Fu : 0x00030003u);
  unsigned high = in_register((HIGH == 2 ? 0x00030003u : 0x00010001u) << LOW % 8);
};

// A plane's word of an oct so that the fields of elements 2 i and 2 i + 1 are `BITS` times i higher than bits `up` and
// 16 + `up`.
template <int BITS>
__device__ __forceinline__ unsigned spread_fields(unsigned word, int up) {
  if (BITS == 4) return word << up;
  if (BITS == 2) return __byte_perm(word, 0, 0x4140) << up;
  return word * ((1u << up) + (1u << (up + 12)));
}

// Bytes `first` and `first` + 2 of a word less OFFSET, as the lowest bits of 2^23: bfloat16 has no room for a base and
// eight bits.
__device__ __forceinline__ unsigned eight_bits(unsigned word, int first) {
  float one = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + first)) - (8388608.f + OFFSET);
  float two = __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7442u + first)) - (8388608.f + OFFSET);
  return pair_bf16(one, two);
}

// The codes of an oct less OFFSET: elements 2 i and 2 i + 1 as the two numbers of `codes[i]`.
__device__ __forceinline__ void codes_of(const Masks& masks, unsigned low, unsigned high, unsigned (&codes)[4]) {
  if (LOW == 8) {
#pragma unroll
    for (int i = 0; i < 4; i++) codes[i] = eight_bits(i % 2 ? high : low, i / 2);
    return;
  }
  low = spread_fields<LOW>(low, 0);
  if (HIGH) high = spread_fields<HIGH>(high, LOW);
  const unsigned less = pair_bf16(-128.f - OFFSET, -128.f - OFFSET);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    unsigned bits = low >> (LOW_BITS * i) & masks.low;
    if (HIGH) bits |= high >> (HIGH_BITS * i) & masks.high;
    codes[i] = fma_bf16(bits | BASE, ONE, less);
  }
}

// A byte of a word as a number: the lowest bits of 2^23, less that.
__device__ __forceinline__ float number_of(unsigned word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + byte)) - 8388608.f;
}

// Of a group, what codes are multiplied by and what is taken off then. `number` is its own scale as stored or, of one byte,
// that of several groups, `which` the byte; `shared` what 256 elements have in common.
__device__ __forceinline__ void scale_numbers(unsigned number, int which, unsigned shared, float& size, float& least) {
  least = 0.f;
  if (MULTIPLES == 0) {
    size = from_f16(number & 0xFFFF);
    least = from_f16(number >> 16);
  } else if (MINIMUM) {
    size = from_f16(shared & 0xFFFF) * number_of(MULTIPLES == 2 ? number : number & 0x0F0F, which);
    least = from_f16(shared >> 16) * (MULTIPLES == 2 ? number_of(number, 1) : number_of(number >> 4 & 0x0F0F, which));
  } else {
    size = __uint_as_float(shared) * (number_of(number ^ 0x8080u, which) - 128.f);
  }
}

// The same with the scale in memory, as two bfloat16: the second is added instead of taken off.
__device__ __forceinline__ unsigned scale_pair(const unsigned char* at, unsigned shared) {
  unsigned number = SCALE_BYTES == 1   ? *at
                    : SCALE_BYTES == 2 ? *reinterpret_cast<const unsigned short*>(at)
                                       : *reinterpret_cast<const unsigned*>(at);
  float size, less;
  scale_numbers(number, 0, shared, size, less);
  return pair_bf16(size, -less);
}

// Each of the two twice.
__device__ __forceinline__ void spread_scale(unsigned pair, unsigned& size, unsigned& least) {
  size = __byte_perm(pair, pair, 0x1010);
  least = MINIMUM ? __byte_perm(pair, pair, 0x3232) : MINUS_ZERO;
}

// Elements 2 t and 2 t + 1 of an oct as an operand.
__device__ __forceinline__ unsigned weights_at(const Masks& masks, int t, unsigned low, unsigned high, unsigned size,
                                               unsigned least) {
  unsigned codes;
  if (LOW == 8) {
    codes = eight_bits(t % 2 ? high : low, t / 2);
  } else {
    low = spread_fields<LOW>(low, 0) >> (LOW_BITS * t) & masks.low;
    if (HIGH) low |= spread_fields<HIGH>(high, LOW) >> (HIGH_BITS * t) & masks.high;
    codes = fma_bf16(low | BASE, ONE, pair_bf16(-128.f - OFFSET, -128.f - OFFSET));
  }
  return fma_bf16(codes, size, least);
}

// An oct as operands, elements 2 i and 2 i + 1 in `weights[i]`.
__device__ __forceinline__ void weights_of(const Masks& masks, unsigned low, unsigned high, unsigned size,
                                           unsigned least, unsigned (&weights)[4]) {
  unsigned codes[4];
  codes_of(masks, low, high, codes);
#pragma unroll
  for (int i = 0; i < 4; i++) weights[i] = fma_bf16(codes[i], size, least);
}
