// Which experts serve a step's only token. Every block of its products chooses for itself.
#pragma once

#include "lanes.h"

namespace blink {

// Of a product with the experts. Gate and up: x [depth], weight [experts, 2 * size, depth], out
// bfloat16 [chosen, size]. Down: x [chosen, depth], weight [experts, size, depth], out float32 [size],
// the sum over the experts.
struct ExpertCall {
    const uint16_t* x;
    const uint16_t* weight;
    void* out;
    const float* scores;  // [experts]
    uint32_t experts, chosen;
    uint32_t size, depth;
    uint32_t blocks;  // of gate and up: of an expert; of down: of all
};

// Larger for what is better: a higher score, of equal ones the first expert. Scores that are no
// numbers come first.
BLINK_DEV inline uint64_t rank_key(float score, uint32_t expert) {
    const uint32_t bits = bits_of(score + 0.0f);  // the zeros are one
    const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(score != score ? ~0u : ordered) << 32 | ~expert;
}

struct Choice {
    uint32_t expert;
    float share;  // of the token's sum; NaN where scores are no numbers
};

// Which expert is at `place` among the best `chosen`. By all threads of a block; its shared memory
// may be written when they are back.
template <class Port>
BLINK_DEV Choice choose_expert(Port& port, const ExpertCall& call, uint32_t place, uint32_t threads) {
    auto* keys = static_cast<uint64_t*>(port.shared());
    // Two keys are read at a time, so that of an odd number's last one the place behind it is read, too.
    auto* best = reinterpret_cast<float*>(keys + (call.experts + 1) / 2 * 2);
    auto* numbers = reinterpret_cast<uint32_t*>(best + call.chosen);
    for (uint32_t e = port.thread(); e < call.experts; e += threads) keys[e] = rank_key(port.fetch(call.scores + e), e);
    port.sync();
    for (uint32_t e = port.thread(); e < call.experts; e += threads) {
        const uint64_t key = keys[e];
        uint32_t rank = 0;
#pragma unroll 16
        for (uint32_t other = 0; other < call.experts; ++other) rank += keys[other] > key ? 1 : 0;
        if (rank < call.chosen) {
            best[rank] = port.fetch(call.scores + e);
            numbers[rank] = e;
        }
    }
    port.sync();
    float sum = 0.0f;
    for (uint32_t i = 0; i < call.chosen; ++i) sum += expf(best[i] - best[0]);
    const Choice choice{numbers[place], expf(best[place] - best[0]) / sum};
    port.sync();
    return choice;
}

}  // namespace blink
