// Values that kernels in shared memory and registers are made of, for the GPU and for the host.
#pragma once

#include "types.h"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

namespace blink {

struct alignas(16) Chunk {
    uint32_t word[4];  // two bfloat16 each
};

BLINK_DEV inline uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

BLINK_DEV inline float from_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

BLINK_DEV inline float infinity() { return from_bits(0x7f800000u); }

// Of a bfloat16.
BLINK_DEV inline float float_of(uint32_t bits) { return from_bits(bits << 16); }

// Rounded to nearest, ties to even; a NaN stays one.
BLINK_DEV inline uint32_t bfloat16_of(float value) {
    const uint32_t bits = bits_of(value);
    return (value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

BLINK_DEV inline uint32_t pack_bfloat16(float low, float high) { return bfloat16_of(low) | bfloat16_of(high) << 16; }

BLINK_DEV inline void store_feature(float* out, float value) { *out = value; }
BLINK_DEV inline void store_feature(uint16_t* out, float value) { *out = static_cast<uint16_t>(bfloat16_of(value)); }

}  // namespace blink
