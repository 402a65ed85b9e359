// A row's logits as ordered keys and integer masses, and what a thread block can find out of them.
//
// Masses are integers (a weight times 2^44), so that sums do not depend on the order of their
// terms: the same row gives the same token whatever the number of lanes.
#pragma once

#include "float_bits.h"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

namespace blink {

constexpr uint32_t kMaxVocabulary = 1u << 19;  // the sum of all masses stays below 2^63
constexpr uint32_t kIdBits = 20;
constexpr float kMassScale = 0x1.0p44f;
constexpr uint32_t kBars = 5;
constexpr uint32_t kFew = 2;           // of four logits, under way where a lane computes much with them
constexpr uint32_t kShortList = 8192;  // each block of a row goes through a list up to it alone

// The sum of what the lanes before one have, and of what all have.
struct Share {
    uint64_t below;
    uint64_t total;
};

// Four logits, loaded at once.
struct alignas(16) FourLogits {
    float value[4];
};

// `logits_` and `scratch_` are [size_]. A weight is exp((logit - best_) * inverse_).
//
// Each group of lanes has a tile of successive ids, and goes through it 4 ids a lane at a time.
template <class Block>
class RowMasses {
  protected:
    BLINK_DEV RowMasses(Block& block, float* logits, uint64_t* scratch, uint32_t size)
        : block_(block), logits_(logits), scratch_(scratch), size_(size), step_(4 * block.width()) {
        const uint32_t groups = block.lanes() / block.width(), group = block.lane() / block.width();
        const uint32_t tile = (size + groups * step_ - 1) / (groups * step_) * step_;
        first_ = least(group * tile, size);
        end_ = least(first_ + tile, size);
    }

    // How many tokens weigh at least each bar, and their masses.
    struct Survey {
        float bars[kBars];
        uint64_t counts[kBars];
        uint64_t masses[kBars];

        // The highest bar with `enough` above it, told by its number; else the last. A number that
        // is only known at run time would take the bars out of registers.
        template <class Enough>
        BLINK_DEV float highest(Enough enough) const {
            float bar = bars[kBars - 1];
            for (uint32_t j = kBars - 1; j-- > 0;)
                if (enough(j)) bar = bars[j];
            return bar;
        }
    };

    // Orders as the floats do, 0 and -0 alike.
    BLINK_DEV static uint64_t ordered(float x) {
        const uint32_t bits = bits_of(x + 0.0f);
        return bits >> 31 != 0 ? ~bits : bits | 1u << 31;
    }

    // Greater for the greater value, among equals for the lower id; never 0 for a finite value.
    BLINK_DEV uint64_t key(float value, uint32_t id) const { return ordered(value) << kIdBits | (size_ - 1 - id); }
    BLINK_DEV uint32_t id_of(uint64_t key) const {
        return size_ - 1 - static_cast<uint32_t>(key & ((1u << kIdBits) - 1));
    }
    BLINK_DEV static float value_of(uint64_t key) {
        const auto bits = static_cast<uint32_t>(key >> kIdBits);
        return from_bits(bits >> 31 != 0 ? bits & ~(1u << 31) : ~bits);
    }

    BLINK_DEV float weight(float logit) const { return expf((logit - best_) * inverse_); }
    BLINK_DEV static uint64_t mass(float weight) { return static_cast<uint64_t>(weight * kMassScale); }

    // Four logits can be loaded at once. Not kept, since that would take a register.
    BLINK_DEV bool is_aligned() const { return reinterpret_cast<uint64_t>(logits_) % sizeof(FourLogits) == 0; }

    // The lane's logits among the next 4 ids of each lane of its group; minus infinity behind the end.
    BLINK_DEV FourLogits load(uint32_t id) const {
        FourLogits four;
        if (is_aligned() && id + 4 <= end_) return *reinterpret_cast<const FourLogits*>(logits_ + id);
        for (uint32_t i = 0; i < 4; ++i) four.value[i] = id + i < end_ ? logits_[id + i] : -infinity();
        return four;
    }

    BLINK_DEV uint32_t first_id() const { return first_ + 4 * (block_.lane() % block_.width()); }

    // The lane's logits, in order; four `kBatch` times at once, while there are so many.
    template <uint32_t kBatch, class Visit>
    BLINK_DEV void visit(Visit visitor) const {
        uint32_t id = first_id();
#pragma unroll 1
        for (; is_aligned() && id + (kBatch - 1) * step_ + 4 <= end_; id += kBatch * step_) {
            FourLogits batch[kBatch];
#pragma unroll
            for (uint32_t j = 0; j < kBatch; ++j)
                batch[j] = *reinterpret_cast<const FourLogits*>(logits_ + id + j * step_);
#pragma unroll
            for (uint32_t j = 0; j < kBatch; ++j)
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) visitor(id + j * step_ + i, batch[j].value[i]);
        }
#pragma unroll 1
        for (; id < end_; id += step_) {
            const FourLogits four = load(id);
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i)
                if (id + i < end_) visitor(id + i, four.value[i]);
        }
    }

    // The lane's logits, `Block::kBatch` times four at once; the last ones more than once, if that
    // keeps a batch full.
    template <class Visit>
    BLINK_DEV void visit_often(Visit visitor) const {
        if (!is_aligned() || end_ % 4 != 0) return visit<kFew>(visitor);
#pragma unroll 1
        for (uint32_t id = first_id(); id < end_; id += Block::kBatch * step_) {
            const uint32_t last = id + (end_ - 1 - id) / step_ * step_;
            FourLogits batch[Block::kBatch];
#pragma unroll
            for (uint32_t j = 0; j < Block::kBatch; ++j)
                batch[j] = *reinterpret_cast<const FourLogits*>(logits_ + least(id + j * step_, last));
#pragma unroll
            for (uint32_t j = 0; j < Block::kBatch; ++j)
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) visitor(least(id + j * step_, last) + i, batch[j].value[i]);
        }
    }

    // Few tokens hold nearly all mass: bars at which a short list may already be enough.
    BLINK_DEV Survey survey(float floor) {
        Survey s;
        float bar = 1e-3f;
        uint32_t counts[kBars] = {};
        uint64_t sums[2 * kBars] = {};
        for (uint32_t j = 0; j < kBars; ++j, bar *= 1e-3f) s.bars[j] = j + 1 == kBars ? floor : fmaxf(bar, floor);
        this->template visit<1>([&](uint32_t, float logit) {
            const float w = weight(logit);
            const uint64_t m = mass(w);
            for (uint32_t j = 0; j < kBars; ++j) {
                counts[j] += w >= s.bars[j];
                sums[j] += w >= s.bars[j] ? m : 0;
            }
        });
        for (uint32_t j = 0; j < kBars; ++j) sums[kBars + j] = counts[j];
        block_.sums(sums);
        for (uint32_t j = 0; j < kBars; ++j) {
            s.masses[j] = sums[j];
            s.counts[j] = sums[kBars + j];
        }
        return s;
    }

    // Lists in `scratch_`, in id order, the keys of the tokens that weigh at least `bar`.
    template <class Value>
    BLINK_DEV uint32_t list(float bar, Value value) {
        uint64_t count = 0;
        this->template visit<kFew>([&](uint32_t, float logit) { count += weight(logit) >= bar; });
        const Share share = block_.share(count);
        uint64_t at = block_.of_first(share.below);
        FourLogits next = load(first_id());
#pragma unroll 1
        for (uint32_t id = first_, own = first_id(); id < end_; id += step_, own += step_) {
            const FourLogits four = next;
            next = load(own + step_);
            uint64_t listed = 0;
            for (uint32_t i = 0; i < 4; ++i) listed += own + i < end_ && weight(four.value[i]) >= bar;
            const Share group = block_.group_share(listed);
            uint64_t to = at + group.below;
            for (uint32_t i = 0; i < 4; ++i) {
                const float w = weight(four.value[i]);
                if (own + i < end_ && w >= bar) scratch_[to++] = key(value(w, four.value[i]), own + i);
            }
            at += group.total;
        }
        block_.sync();
        return static_cast<uint32_t>(share.total);
    }

    // The greatest of the listed keys' bounds for which `holds(sum)`, where the sum is that of
    // `term(key)` over the keys not below it; it has to hold for 0 and for no bound above one for
    // which it does not. All of `lanes`.
    template <class Lanes, class Term, class Holds>
    BLINK_DEV uint64_t greatest_key(Lanes& lanes, uint32_t listed, Term term, Holds holds) const {
        constexpr uint32_t kBits = 2, kBounds = (1u << kBits) - 1;
        uint64_t found = 0;
#pragma unroll 1
        for (int shift = (kIdBits + 32 + kBits - 1) / kBits * kBits - kBits; shift >= 0; shift -= kBits) {
            uint64_t sums[kBounds] = {};
#pragma unroll 1
            for (uint32_t i = lanes.lane(); i < listed; i += lanes.lanes()) {
                const uint64_t key = scratch_[i], mine = term(key);
                for (uint32_t j = 0; j < kBounds; ++j) sums[j] += key >= (found | uint64_t{j + 1} << shift) ? mine : 0;
            }
            lanes.sums(sums);
            uint64_t digit = 0;
            for (uint32_t j = 0; j < kBounds; ++j)
                if (holds(sums[j])) digit = j + 1;
            found |= digit << shift;
        }
        return found;
    }

    template <class Lanes>
    BLINK_DEV uint64_t mass_from(Lanes& lanes, uint64_t lowest, uint32_t listed) const {
        uint64_t total = 0;
#pragma unroll 1
        for (uint32_t i = lanes.lane(); i < listed; i += lanes.lanes())
            if (scratch_[i] >= lowest) total += mass_of(scratch_[i]);
        return lanes.sum(total);
    }

    // The mass of a listed weight: weights are not negative, so one bit more tells the float.
    BLINK_DEV static uint64_t mass_of(uint64_t key) {
        return mass(from_bits(static_cast<uint32_t>(key >> kIdBits) & ~(1u << 31)));
    }

    BLINK_DEV static bool is_within(uint64_t below, uint64_t mine, double goal) {
        return static_cast<double>(below) <= goal && static_cast<double>(below + mine) > goal;
    }

    // Walks all tokens in id order up to `uniform` of their mass: the group in whose tile the walk
    // ends goes through it again. All lanes.
    BLINK_DEV int32_t walk(float uniform) {
        uint64_t mine = 0;
        this->template visit<kFew>([&](uint32_t, float logit) { mine += mass(weight(logit)); });
        const Share share = block_.share(mine);
        const double goal = static_cast<double>(uniform) * static_cast<double>(share.total);
        uint64_t below = block_.of_first(share.below);
        uint64_t found = 0;
        if (is_within(below, block_.group_share(mine).total, goal)) {
            FourLogits next = load(first_id());
#pragma unroll 1
            for (uint32_t id = first_, own = first_id(); id < end_; id += step_, own += step_) {
                const FourLogits four = next;
                next = load(own + step_);
                uint64_t masses[4], sum = 0;
                for (uint32_t i = 0; i < 4; ++i) sum += masses[i] = mass(weight(four.value[i]));
                const Share group = block_.group_share(sum);
                uint64_t to = below + group.below;
                for (uint32_t i = 0; i < 4; ++i) {
                    if (is_within(to, masses[i], goal)) found = own + i + 1;
                    to += masses[i];
                }
                below += group.total;
                if (static_cast<double>(below) > goal) break;
            }
        }
        return static_cast<int32_t>(block_.max(found)) - 1;
    }

    // As `walk`, through the listed weights whose keys are not below `lowest`: each lane has a run
    // of them. All of `lanes`.
    template <class Lanes>
    BLINK_DEV int32_t walk_list(Lanes& lanes, uint32_t listed, float uniform, uint64_t lowest) const {
        const uint32_t run = (listed + lanes.lanes() - 1) / lanes.lanes();
        const uint32_t first = least(lanes.lane() * run, listed), end = least(first + run, listed);
        uint64_t mine = 0;
#pragma unroll 1
        for (uint32_t i = first; i < end; ++i) mine += mass_not_below(lowest, scratch_[i]);
        const Share share = lanes.share(mine);
        const double goal = static_cast<double>(uniform) * static_cast<double>(share.total);
        uint64_t below = share.below;
        uint64_t found = 0;
        if (is_within(below, mine, goal))
#pragma unroll 1
            for (uint32_t i = first; i < end && found == 0; ++i) {
                const uint64_t m = mass_not_below(lowest, scratch_[i]);
                if (is_within(below, m, goal)) found = id_of(scratch_[i]) + 1;
                below += m;
            }
        return static_cast<int32_t>(lanes.max(found)) - 1;
    }

    BLINK_DEV static uint64_t mass_not_below(uint64_t lowest, uint64_t key) { return key >= lowest ? mass_of(key) : 0; }
    template <class Number>
    BLINK_DEV static Number least(Number a, Number b) {
        return a < b ? a : b;
    }

    Block& block_;
    float* logits_;
    uint64_t* scratch_;
    uint32_t size_;
    uint32_t step_;         // ids that a group goes through at once
    uint32_t first_, end_;  // of the group's tile
    float best_ = 0.0f;
    float inverse_ = 1.0f;
};

}  // namespace blink
