// The sum of a head's parts, each of which has left its mixture and the logarithm of its weight.
#pragma once

#include "attention_call.h"

namespace blink {

// Elements `element` to `element` + 3, to `out`. Part i of `count` lies at `place(i)`. A few at a
// time, all loaded before any is used.
template <uint32_t kHeadDim, class Port, class Place>
BLINK_DEV inline void sum_parts(Port& port, const AttentionCall& a, uint32_t count, const Place& place,
                                uint32_t element, uint16_t* out) {
    constexpr uint32_t kAtOnce = 8;
    float best = -infinity(), total = 0.0f, values[4] = {};
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += kAtOnce) {
        float log_sum[kAtOnce], now = best;
        Chunk part[kAtOnce];
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const bool known = first + i < count;
            const uint64_t at = place(first + i);
            const float* from = a.partial + at * kHeadDim + element;
            log_sum[i] = known ? port.fetch(a.log_sums + at) : -infinity();
            part[i] = known ? port.load(reinterpret_cast<const uint16_t*>(from)) : Chunk{};
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) now = fmaxf(now, log_sum[i]);
        const float fade = best > -infinity() ? exp2f(best - now) : 0.0f;
        total *= fade;
        for (uint32_t j = 0; j < 4; ++j) values[j] *= fade;
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const float weight = log_sum[i] == -infinity() ? 0.0f : exp2f(log_sum[i] - now);
            total += weight;
            for (uint32_t j = 0; j < 4; ++j) values[j] += weight * from_bits(part[i].word[j]);
        }
        best = now;
    }
    const float share = total == 0.0f ? 0.0f : 1.0f / total;
    for (uint32_t j = 0; j < 4; ++j) store_feature(out + j, share * values[j]);
}

// Of all splits of head `at`, of all rows'.
template <class Port, uint32_t kHeadDim>
BLINK_DEV inline void sum_splits(Port& port, const AttentionCall& a, uint64_t at, uint32_t element) {
    const auto place = [&a, at](uint32_t split) { return at * a.splits + split; };
    sum_parts<kHeadDim>(port, a, a.splits, place, element, a.out + at * kHeadDim + element);
}

}  // namespace blink
