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
constexpr uint32_t kBatch = 8;  // logits that a lane has under way at once

// `logits_` and `scratch_` are [size_]. A weight is exp((logit - best_) * inverse_).
template <class Block>
class RowMasses {
  protected:
    BLINK_DEV RowMasses(Block& block, float* logits, uint64_t* scratch, uint32_t size)
        : block_(block), logits_(logits), scratch_(scratch), size_(size) {}

    // How many tokens weigh at least each bar, and their masses.
    struct Survey {
        float bars[kBars];
        uint64_t counts[kBars];
        uint64_t masses[kBars];
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

    BLINK_DEV float weight(float logit) const { return expf((logit - best_) * inverse_); }
    BLINK_DEV static uint64_t mass(float weight) { return static_cast<uint64_t>(weight * kMassScale); }

    // Every `step`th logit from `first` on, below `end`, in order; loaded a batch at a time.
    template <class Visit>
    BLINK_DEV void visit(uint32_t first, uint32_t end, uint32_t step, Visit visitor) const {
        for (uint32_t id = first; id < end; id += kBatch * step) {
            float batch[kBatch];
            for (uint32_t j = 0; j < kBatch; ++j) batch[j] = id + j * step < end ? logits_[id + j * step] : -infinity();
            for (uint32_t j = 0; j < kBatch; ++j)
                if (id + j * step < end) visitor(id + j * step, batch[j]);
        }
    }

    // Few tokens hold nearly all mass: bars at which a short list may already be enough.
    BLINK_DEV Survey survey(float floor) {
        Survey s;
        float bar = 1e-3f;
        for (uint32_t j = 0; j < kBars; ++j, bar *= 1e-3f) {
            s.bars[j] = j + 1 == kBars ? floor : fmaxf(bar, floor);
            s.counts[j] = s.masses[j] = 0;
        }
        visit(block_.lane(), size_, block_.lanes(), [&](uint32_t, float logit) {
            const float w = weight(logit);
            const uint64_t m = mass(w);
            for (uint32_t j = 0; j < kBars; ++j) {
                s.counts[j] += w >= s.bars[j];
                s.masses[j] += w >= s.bars[j] ? m : 0;
            }
        });
        for (uint32_t j = 0; j < kBars; ++j) {
            s.counts[j] = block_.sum(s.counts[j]);
            s.masses[j] = block_.sum(s.masses[j]);
        }
        return s;
    }

    // Lists in `scratch_`, in id order, the keys of the tokens that weigh at least `bar`.
    template <class Value>
    BLINK_DEV uint32_t list(float bar, Value value) {
        const uint32_t share = (size_ + block_.lanes() - 1) / block_.lanes();
        const uint32_t first = block_.lane() * share < size_ ? block_.lane() * share : size_;
        const uint32_t end = first + share < size_ ? first + share : size_;
        uint64_t count = 0;
        visit(first, end, 1, [&](uint32_t, float logit) { count += weight(logit) >= bar; });
        uint64_t at = block_.scan(count);
        visit(first, end, 1, [&](uint32_t id, float logit) {
            const float w = weight(logit);
            if (w >= bar) scratch_[at++] = key(value(w, logit), id);
        });
        const auto listed = static_cast<uint32_t>(block_.sum(count));
        block_.sync();
        return listed;
    }

    // The greatest key for which `holds`, which holds for 0 and for no key above one it does not.
    template <class Holds>
    BLINK_DEV uint64_t greatest_key(Holds holds) {
        uint64_t found = 0;
        for (int bit = kIdBits + 31; bit >= 0; --bit) {
            const uint64_t next = found | uint64_t{1} << bit;
            if (holds(next)) found = next;
        }
        return found;
    }

    BLINK_DEV uint64_t count_from(uint64_t lowest, uint32_t listed) {
        uint64_t count = 0;
        for (uint32_t i = block_.lane(); i < listed; i += block_.lanes()) count += scratch_[i] >= lowest;
        return block_.sum(count);
    }

    BLINK_DEV uint64_t mass_from(uint64_t lowest, uint32_t listed) {
        uint64_t total = 0;
        for (uint32_t i = block_.lane(); i < listed; i += block_.lanes())
            if (scratch_[i] >= lowest) total += mass_of(scratch_[i]);
        return block_.sum(total);
    }

    // The mass of a listed weight: weights are not negative, so one bit more tells the float.
    BLINK_DEV static uint64_t mass_of(uint64_t key) {
        return mass(from_bits(static_cast<uint32_t>(key >> kIdBits) & ~(1u << 31)));
    }

    // Walks `count` candidates in id order up to `uniform` of their mass. Each lane has a run of
    // them; the one in whose run the walk ends goes through it again.
    template <class Candidates>
    BLINK_DEV int32_t walk(uint32_t count, float uniform, Candidates candidates) {
        const uint32_t share = (count + block_.lanes() - 1) / block_.lanes();
        const uint32_t first = block_.lane() * share < count ? block_.lane() * share : count;
        const uint32_t end = first + share < count ? first + share : count;
        uint64_t mine = 0;
        candidates.run(first, end, [&mine](uint32_t, uint64_t mass) { mine += mass; });
        const double goal = static_cast<double>(uniform) * static_cast<double>(block_.sum(mine));
        uint64_t below = block_.scan(mine);
        uint64_t found = 0;
        if (static_cast<double>(below) <= goal && static_cast<double>(below + mine) > goal)
            candidates.run(first, end, [&](uint32_t id, uint64_t mass) {
                below += mass;
                if (found == 0 && mass != 0 && static_cast<double>(below) > goal) found = id + 1;
            });
        return static_cast<int32_t>(block_.max(found)) - 1;
    }

    // What `walk` can go through. Not lambdas: NVRTC 13.0 takes generic ones for host functions.
    struct AllTokens {
        const RowMasses& row;
        template <class Visit>
        BLINK_DEV void run(uint32_t first, uint32_t end, Visit visitor) const {
            const RowMasses& masses = row;
            row.visit(first, end, 1,
                      [&](uint32_t id, float logit) { visitor(id, RowMasses::mass(masses.weight(logit))); });
        }
    };
    struct ListedTokens {
        const RowMasses& row;
        uint64_t lowest;  // keys below it are left out
        template <class Visit>
        BLINK_DEV void run(uint32_t first, uint32_t end, Visit visitor) const {
            for (uint32_t i = first; i < end; ++i) {
                const uint64_t key = row.scratch_[i];
                visitor(row.id_of(key), key >= lowest ? RowMasses::mass_of(key) : 0);
            }
        }
    };

    BLINK_DEV static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

    Block& block_;
    float* logits_;
    uint64_t* scratch_;
    uint32_t size_;
    float best_ = 0.0f;
    float inverse_ = 1.0f;
};

}  // namespace blink
