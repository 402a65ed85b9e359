// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), stateless.
#pragma once

#include "types.h"

namespace blink {

struct Philox4 {
    uint32_t word[4];
};

BLINK_HD inline Philox4 philox4x32(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
    Philox4 c{{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = 0xD2511F53ull * c.word[0], p1 = 0xCD9E8D57ull * c.word[2];
        c = {{static_cast<uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(p1),
              static_cast<uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(p0)}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// The random number of one token, uniform in [0, 1): it depends on (seed, position) alone.
BLINK_HD inline float uniform_at(uint64_t seed, uint32_t position) {
    return static_cast<float>(philox4x32(position, 0, seed).word[0] >> 8) * 0x1.0p-24f;
}

}  // namespace blink
