// Values that kernels in shared memory and registers are made of, for the GPU and for the host.
#pragma once

#include "float_bits.h"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

namespace blink {

struct alignas(16) Chunk {
    uint32_t word[4];  // two bfloat16 each
};

// Of a bfloat16.
BLINK_DEV inline float float_of(uint32_t bits) { return from_bits(bits << 16); }

// Rounded to nearest, ties to even; a NaN stays one.
BLINK_DEV inline uint32_t bfloat16_of(float value) {
    const uint32_t bits = bits_of(value);
    return (value != value ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

BLINK_DEV inline uint32_t pack_bfloat16(float low, float high) { return bfloat16_of(low) | bfloat16_of(high) << 16; }

// To within two units of the last place. The exact ones are calls of functions, for which
// multiplications on the tensor cores would wait.
BLINK_DEV inline float quotient(float value, float by) {
#ifdef __CUDA_ARCH__
    return __fdividef(value, by);
#else
    return value / by;
#endif
}
BLINK_DEV inline float inverse_root(float value) {
#ifdef __CUDA_ARCH__
    return rsqrtf(value);
#else
    return 1.0f / sqrtf(value);
#endif
}

BLINK_DEV inline float silu(float value) {
#ifdef __CUDA_ARCH__
    return quotient(value, 1.0f + __expf(-value));
#else
    return quotient(value, 1.0f + expf(-value));
#endif
}

BLINK_DEV inline void store_feature(float* out, float value) { *out = value; }
BLINK_DEV inline void store_feature(uint16_t* out, float value) { *out = static_cast<uint16_t>(bfloat16_of(value)); }

}  // namespace blink
