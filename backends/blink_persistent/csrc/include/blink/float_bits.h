// A float's bits, for the GPU and for the host.
#pragma once

#include "types.h"

namespace blink {

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

}  // namespace blink
