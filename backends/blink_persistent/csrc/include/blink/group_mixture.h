// What the warps of a block make of a group's heads, each of its own entries, and the sum of it.
#pragma once

#include "attention_call.h"

namespace blink {

// Of a head and some of its elements.
template <uint32_t kCount>
struct HeadSum {
    float best = -infinity();  // score
    float total = 0.0f;        // of the weights
    float values[kCount] = {};

    // A total is 0 where there was no entry. One that is NaN must not be taken for that.
    BLINK_DEV float mean(uint32_t i) const { return total == 0.0f ? 0.0f : values[i] / total; }
    BLINK_DEV float log_sum() const { return total == 0.0f ? -infinity() : best + log2f(total); }
};

// A lane's share of what its warp makes, and all warps' in shared memory. A head is kPitch elements
// there, such that no two lanes that write are in one bank.
template <class Port, uint32_t kWarps, uint32_t kHeadDim, uint32_t kPitch>
class GroupMixture {
  public:
    BLINK_DEV static constexpr uint32_t shared_floats(uint32_t heads) {
        return kMostGroup + kWarps * heads * (kPitch + 2);
    }

    // `heads` of a group; `room`: `shared_floats` of them.
    BLINK_DEV GroupMixture(Port& port, uint32_t heads, float scale, float* room)
        : port_(port), heads_(heads), scale_(scale), warp_(port.thread() / 32), lane_(port.thread() % 32),
          new_scores_(room), handed_in_(room + kMostGroup) {}

    BLINK_DEV void clear() {
        best_ = -infinity();
        total_ = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 4; ++i) mixed[i / 4][i % 4] = 0.0f;
    }

    // `scores` of head g: entries 2 * t and 2 * t + 1, and those 8 further, of which `known` count.
    // `fades`: by what earlier weights of heads 2 * t and 2 * t + 1 do.
    BLINK_DEV void weigh(float (&scores)[2][4], uint32_t known, uint32_t (&weights)[2], float (&fades)[2]) {
        const uint32_t t = lane_ % 4;
        float now = best_;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            float& score = scores[i / 2][i % 2];
            score = i / 2 * 8 + 2 * t + i % 2 < known ? score * scale_ : -infinity();
            now = fmaxf(now, score);
        }
        now = fmaxf(now, port_.exchange_xor(now, 1));
        now = fmaxf(now, port_.exchange_xor(now, 2));
        const float fade = exp2f(best_ - now);
        total_ *= fade;
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const float first = exp2f(scores[half][0] - now), second = exp2f(scores[half][1] - now);
            total_ += first + second;
            weights[half] = pack_bfloat16(first, second);
        }
        best_ = now;
        fades[0] = port_.exchange(fade, 8 * t);
        fades[1] = port_.exchange(fade, 8 * t + 4);
    }

    // The new token's, of a head a warp: it is an entry of its own. `heads` as NewToken leaves them.
    BLINK_DEV void score_new(const Chunk* heads) {
        for (uint32_t head = warp_; head < heads_; head += kWarps) {
            float sum = 0.0f;
            if (lane_ < kHeadDim / 8) {
                const Chunk &q = heads[key_place<kHeadDim>(head, lane_)],
                            &k = heads[key_place<kHeadDim>(kMostGroup, lane_)];
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i)
                    sum += float_of(q.word[i] & 0xffff) * float_of(k.word[i] & 0xffff) +
                           float_of(q.word[i] >> 16) * float_of(k.word[i] >> 16);
            }
            for (uint32_t mask = 16; mask > 0; mask /= 2) sum += port_.exchange_xor(sum, mask);
            if (lane_ == 0) new_scores_[head] = sum * scale_;
        }
    }

    // `element_of(g, i, j)`: which of its head mixed[i][j] is.
    template <class ElementOf>
    BLINK_DEV void hand_in(const ElementOf& element_of) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        total_ += port_.exchange_xor(total_, 1);
        total_ += port_.exchange_xor(total_, 2);
        if (t == 0 && g < heads_) {
            tally(warp_, g)[0] = best_;
            tally(warp_, g)[1] = total_;
        }
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            if (2 * t + j >= heads_) continue;
            float* own = mixture(warp_, 2 * t + j);
#pragma unroll
            for (uint32_t i = 0; i < kHeadDim / 16; ++i) {
                own[element_of(g, i, j)] = mixed[i][j];
                own[element_of(g, i, j + 2)] = mixed[i][j + 2];
            }
        }
    }

    // Elements `first`, and every 32 further, of what all warps have handed in and, where there is
    // one, of the new token.
    template <uint32_t kCount>
    BLINK_DEV HeadSum<kCount> sum(uint32_t head, uint32_t first, bool has_new, const Chunk* heads) const {
        HeadSum<kCount> sum;
        if (has_new) sum.best = new_scores_[head];
#pragma unroll
        for (uint32_t warp = 0; warp < kWarps; ++warp) sum.best = fmaxf(sum.best, tally(warp, head)[0]);
#pragma unroll
        for (uint32_t warp = 0; warp < kWarps; ++warp) {
            const float own = tally(warp, head)[1];
            const float weight = own == 0.0f ? 0.0f : exp2f(tally(warp, head)[0] - sum.best);
            sum.total += weight * own;
#pragma unroll
            for (uint32_t i = 0; i < kCount; ++i) sum.values[i] += weight * mixture(warp, head)[32 * i + first];
        }
        if (!has_new) return sum;
        const float weight = exp2f(new_scores_[head] - sum.best);
        sum.total += weight;
#pragma unroll
        for (uint32_t i = 0; i < kCount; ++i) {
            const Chunk& chunk = heads[key_place<kHeadDim>(kMostGroup + 1, 4 * i + first / 8)];
            sum.values[i] += weight * float_of(chunk.word[first % 8 / 2] >> first % 2 * 16 & 0xffff);
        }
        return sum;
    }

    float mixed[kHeadDim / 16][4];  // of heads 2 * t and 2 * t + 1

  private:
    // Handed in: the mixtures [warps, heads, kPitch], then best and total of each head.
    BLINK_DEV float* mixture(uint32_t warp, uint32_t head) const {
        return handed_in_ + (warp * heads_ + head) * kPitch;
    }

    BLINK_DEV float* tally(uint32_t warp, uint32_t head) const {
        return handed_in_ + kWarps * heads_ * kPitch + 2 * (warp * heads_ + head);
    }

    Port& port_;
    const uint32_t heads_;
    const float scale_;
    const uint32_t warp_, lane_;
    float* const new_scores_;  // of the new token, by head
    float* const handed_in_;
    float best_, total_;  // of head g
};

}  // namespace blink
