// The sum of a head's parts, each of which has left its mixture and the logarithm of its weight.
#pragma once

#include "attention_call.h"

namespace blink {

// So many floats, from the L2 cache.
template <uint32_t kCount>
struct Floats {
    uint32_t bits[kCount];
};
template <class Port>
BLINK_DEV inline void fetch_floats(Port& port, const float* from, Floats<4>& to) {
    const Chunk chunk = port.load(reinterpret_cast<const uint16_t*>(from));
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) to.bits[i] = chunk.word[i];
}
template <class Port>
BLINK_DEV inline void fetch_floats(Port& port, const float* from, Floats<2>& to) {
    const uint64_t both = port.fetch(reinterpret_cast<const uint64_t*>(from));
    to.bits[0] = static_cast<uint32_t>(both);
    to.bits[1] = static_cast<uint32_t>(both >> 32);
}

// Elements `element` to `element` + kElements - 1, to `out`. Part i of `count` lies at `place(i)`.
// kAtOnce at a time, all loaded before any is used.
template <uint32_t kHeadDim, uint32_t kElements, uint32_t kAtOnce, class Port, class Place>
BLINK_DEV inline void sum_parts(Port& port, const AttentionCall& a, uint32_t count, const Place& place,
                                uint32_t element, uint16_t* out) {
    float best = -infinity(), total = 0.0f, values[kElements] = {};
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += kAtOnce) {
        float log_sum[kAtOnce], now = best;
        Floats<kElements> part[kAtOnce] = {};
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const bool known = first + i < count;
            const uint64_t at = place(first + i);
            const float* from = a.partial + at * kHeadDim + element;
            log_sum[i] = known ? port.fetch(a.log_sums + at) : -infinity();
            if (known) fetch_floats(port, from, part[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) now = fmaxf(now, log_sum[i]);
        const float fade = best > -infinity() ? exp2f(best - now) : 0.0f;
        total *= fade;
        for (uint32_t j = 0; j < kElements; ++j) values[j] *= fade;
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const float weight = log_sum[i] == -infinity() ? 0.0f : exp2f(log_sum[i] - now);
            total += weight;
            for (uint32_t j = 0; j < kElements; ++j) values[j] += weight * from_bits(part[i].bits[j]);
        }
        best = now;
    }
    const float share = total == 0.0f ? 0.0f : quotient(1.0f, total);
    for (uint32_t j = 0; j < kElements; ++j) store_feature(out + j, share * values[j]);
}

// Of all splits of head `at`, of all rows'.
template <class Port, uint32_t kHeadDim>
BLINK_DEV inline void sum_splits(Port& port, const AttentionCall& a, uint64_t at, uint32_t element) {
    const auto place = [&a, at](uint32_t split) { return at * a.splits + split; };
    sum_parts<kHeadDim, 4, 8>(port, a, a.splits, place, element, a.out + at * kHeadDim + element);
}

}  // namespace blink
