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

// The codes of an oct less OFFSET: elements 2 i and 2 i + 1 as the two numbers of `codes[i]`.
__device__ __forceinline__ void codes_of(const Masks& masks, unsigned low, unsigned high, unsigned (&codes)[4]) {
  if (LOW == 8) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // As the lowest bits of 2^23: bfloat16 has no room for a base and eight bits.
      unsigned word = i % 2 ? high : low, first = 0x7440u + i / 2;
      float one = __uint_as_float(__byte_perm(word, 0x4B000000u, first)) - (8388608.f + OFFSET);
      float two = __uint_as_float(__byte_perm(word, 0x4B000000u, first + 2)) - (8388608.f + OFFSET);
      codes[i] = pair_bf16(one, two);
    }
    return;
  }
  if (LOW == 2) low = __byte_perm(low, 0, 0x4140);  // the second byte 16 bits up
  if (HIGH == 2) high = __byte_perm(high, 0, 0x4140);
  if (HIGH == 1) high *= (1u << LOW) + (1u << (LOW + 12));  // bit 0 to the place above the low bits, bit 4 16 bits up
  const unsigned less = pair_bf16(-128.f - OFFSET, -128.f - OFFSET);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    unsigned bits = ((low >> (LOW_BITS * i)) & masks.low) | BASE;
    if (HIGH == 2) bits |= (2 * i < LOW ? high << (LOW - 2 * i) : high >> (2 * i - LOW)) & masks.high;
    if (HIGH == 1) bits |= (high >> i) & masks.high;
    codes[i] = fma_bf16(bits, ONE, less);
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

// The same with the scale in memory, as bfloat16, each twice: what is added instead of taken off.
__device__ __forceinline__ void scale_of(const unsigned char* at, unsigned shared, unsigned& size, unsigned& least) {
  unsigned number = SCALE_BYTES == 1   ? *at
                    : SCALE_BYTES == 2 ? *reinterpret_cast<const unsigned short*>(at)
                                       : *reinterpret_cast<const unsigned*>(at);
  float by, less;
  scale_numbers(number, 0, shared, by, less);
  size = pair_bf16(by, by);
  least = MINIMUM ? pair_bf16(-less, -less) : MINUS_ZERO;
}

// An oct as operands, elements 2 i and 2 i + 1 in `weights[i]`.
__device__ __forceinline__ void weights_of(const Masks& masks, unsigned low, unsigned high, unsigned size,
                                           unsigned least, unsigned (&weights)[4]) {
  unsigned codes[4];
  codes_of(masks, low, high, codes);
#pragma unroll
  for (int i = 0; i < 4; i++) weights[i] = fma_bf16(codes[i], size, least);
}
