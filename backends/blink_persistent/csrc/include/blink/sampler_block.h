// The default sampler for a thread block: the semantics of sampler_host.h, one block a row.
//
// One source for the GPU and, lane by lane, for the host that tests it. Masses are integers (a
// weight times 2^44), so that sums do not depend on the order of their terms: the same row gives
// the same token whatever the number of lanes. What a Block must offer:
//
//   lane(), lanes(), sync()
//   sum(u64), max(u64)              over all lanes, told to all
//   scan(u64)                       sum of the lanes before this one
//   add(u32*, v), set_bits(u32*, v) atomic within the block
//   take(u32*)                      atomic: reads and leaves 0
//   add(float*, v)                  atomic within the block
#pragma once

#include "provisioned.h"
#include "random.h"
#include "ring_layout.h"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

namespace blink {

constexpr uint32_t kMaxVocabulary = 1u << 19;  // the sum of all masses stays below 2^63
constexpr uint32_t kIdBits = 20;
constexpr float kMassScale = 0x1.0p44f;
constexpr uint32_t kPromptBit = 1u << 31;  // of a token's count: it is part of the prompt
constexpr uint32_t kBars = 5;
constexpr uint32_t kBatch = 8;  // logits that a lane has under way at once

template <class Block>
class BlockSampler {
  public:
    // `logits` [vocabulary] are changed; `scratch` [vocabulary] may hold anything. All lanes.
    BLINK_DEV BlockSampler(Block& block, const EngineTables& engine, const SamplingRow& row, float* logits,
                           uint64_t* scratch)
        : block_(block), engine_(engine), row_(row), logits_(logits), scratch_(scratch), size_(engine.vocabulary_size) {
    }

    // Chooses the token and writes the outputs of row `index` of a phase.
    BLINK_DEV void sample(const PhaseBuffers& buffers, uint32_t index) {
        adjust();
        const uint64_t top = best_key();
        int32_t token = -1;
        if (top != 0) {
            best_ = logits_[id_of(top)];
            token = row_.temperature == 0.0f ? static_cast<int32_t>(id_of(top)) : draw();
            if (row_.logprobs != 0) write_logprobs(buffers, index, token);
        }
        if (block_.lane() == 0) buffers.output_tokens[index] = token;
    }

  private:
    // How many tokens weigh at least each bar, and their masses.
    struct Survey {
        float bars[kBars];
        uint64_t counts[kBars];
        uint64_t masses[kBars];
    };

    BLINK_DEV bool inside(int32_t id) const { return id >= 0 && static_cast<uint32_t>(id) < size_; }

    BLINK_DEV static uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
        return __float_as_uint(x);
#else
        uint32_t bits;
        __builtin_memcpy(&bits, &x, sizeof bits);
        return bits;
#endif
    }

    BLINK_DEV static float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
        return __uint_as_float(bits);
#else
        float x;
        __builtin_memcpy(&x, &bits, sizeof x);
        return x;
#endif
    }

    BLINK_DEV static float infinity() { return float_of(0x7F800000u); }

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

    // Bias, penalties, suppressed end tokens.
    BLINK_DEV void adjust() {
        const uint32_t lane = block_.lane(), lanes = block_.lanes();
        const auto* bias = reinterpret_cast<const int32_t*>(row_.bias);
        for (uint32_t i = lane; i < row_.bias_count; i += lanes)
            if (inside(bias[2 * i])) block_.add(logits_ + bias[2 * i], reinterpret_cast<const float*>(bias)[2 * i + 1]);
        block_.sync();
        if (row_.repetition_penalty != 1.0f || row_.presence_penalty != 0.0f || row_.frequency_penalty != 0.0f)
            penalize();
        if ((row_.flags & kSamplingSuppressEnd) != 0) {
            forbid(reinterpret_cast<const int32_t*>(row_.stop), row_.stop_count);
            if ((row_.flags & kSamplingKeepEos) == 0) forbid(engine_.eos_token_ids, engine_.eos_count);
        }
        block_.sync();
    }

    BLINK_DEV void forbid(const int32_t* ids, uint32_t count) {
        for (uint32_t i = block_.lane(); i < count; i += block_.lanes())
            if (inside(ids[i])) logits_[ids[i]] = -infinity();
    }

    // Every token that was seen is counted in the scratch memory; the lane that takes its count
    // changes its logit.
    BLINK_DEV void penalize() {
        auto* counts = reinterpret_cast<uint32_t*>(scratch_);
        for_seen([this, counts](int32_t id, bool) { block_.take(counts + id); });
        block_.sync();
        for_seen([this, counts](int32_t id, bool in_prompt) {
            if (in_prompt)
                block_.set_bits(counts + id, kPromptBit);
            else
                block_.add(counts + id, 1u);
        });
        block_.sync();
        for_seen([this, counts](int32_t id, bool) {
            const uint32_t taken = block_.take(counts + id);
            if (taken == 0) return;
            const uint32_t generated = taken & ~kPromptBit;
            float logit = logits_[id];
            if (generated != 0) logit -= row_.presence_penalty + row_.frequency_penalty * static_cast<float>(generated);
            if (row_.repetition_penalty != 1.0f)
                logit = logit > 0.0f ? logit / row_.repetition_penalty : logit * row_.repetition_penalty;
            logits_[id] = logit;
        });
        block_.sync();
    }

    template <class Visit>
    BLINK_DEV void for_seen(Visit visit) {
        const auto* output = reinterpret_cast<const int32_t*>(row_.output);
        const auto* prompt = reinterpret_cast<const int32_t*>(row_.prompt);
        for (uint32_t i = block_.lane(); i < row_.output_length; i += block_.lanes())
            if (inside(output[i])) visit(output[i], false);
        if (row_.repetition_penalty == 1.0f) return;
        for (uint32_t i = block_.lane(); i < row_.prompt_length; i += block_.lanes())
            if (inside(prompt[i])) visit(prompt[i], true);
    }

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

    // The best token's key; 0 where a logit is NaN or infinite, or none is above minus infinity.
    BLINK_DEV uint64_t best_key() {
        float best = -infinity();
        uint32_t at = block_.lane();
        bool bad = false;
        visit(block_.lane(), size_, block_.lanes(), [&](uint32_t id, float logit) {
            bad |= !(logit < infinity());
            at = logit > best ? id : at;
            best = logit > best ? logit : best;
        });
        const uint64_t mine = at < size_ ? key(best, at) : 0;
        const uint64_t top = block_.max(bad ? ~uint64_t{0} : mine);
        if (top == ~uint64_t{0} || logits_[id_of(top)] == -infinity()) return 0;
        return top;
    }

    BLINK_DEV int32_t draw() {
        // A reciprocal of infinity would turn the best logit's zero distance into NaN.
        inverse_ = fminf(1.0f / row_.temperature, 3.402823466e38f);
        const float uniform = uniform_at(row_.seed, row_.position);
        if (row_.min_p <= 0.0f && row_.top_k <= 0 && row_.top_p >= 1.0f)
            return walk(size_, uniform, [this](uint32_t first, uint32_t end, auto visitor) {
                visit(first, end, 1, [&](uint32_t id, float logit) { visitor(id, mass(weight(logit))); });
            });
        const Survey found = survey(row_.min_p);
        const uint64_t wanted = least(static_cast<uint64_t>(row_.top_k), found.counts[kBars - 1]);
        uint32_t bar = 0;
        while (bar + 1 < kBars &&
               !(row_.top_k > 0 ? found.counts[bar] >= wanted : is_share(found.masses[bar], found.masses[kBars - 1])))
            bar += 1;
        const uint32_t listed = list(found.bars[bar], [this](float weight, float) { return weight; });
        uint64_t lowest = 0, within = found.masses[kBars - 1];
        if (row_.top_k > 0) {
            lowest = greatest_key([&](uint64_t k) { return count_from(k, listed) >= wanted; });
            within = mass_from(lowest, listed);
        }
        if (row_.top_p < 1.0f) {
            const uint64_t top = greatest_key([&](uint64_t k) { return is_share(mass_from(k, listed), within); });
            lowest = top > lowest ? top : lowest;
        }
        return walk(listed, uniform, [this, lowest](uint32_t first, uint32_t end, auto visitor) {
            for (uint32_t i = first; i < end; ++i)
                visitor(id_of(scratch_[i]), scratch_[i] >= lowest ? mass_of(scratch_[i]) : 0);
        });
    }

    // Do tokens of this mass reach top_p of `whole`? At least one token always does.
    BLINK_DEV bool is_share(uint64_t part, uint64_t whole) const {
        return part > 0 && static_cast<double>(part) >= static_cast<double>(row_.top_p) * static_cast<double>(whole);
    }

    BLINK_DEV static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

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
        return mass(float_of(static_cast<uint32_t>(key >> kIdBits) & ~(1u << 31)));
    }

    // Walks `count` candidates in id order up to `uniform` of their mass. Each lane has a run of
    // them; the one in whose run the walk ends goes through it again. `run(first, end, visitor)`
    // tells ids and masses.
    template <class Run>
    BLINK_DEV int32_t walk(uint32_t count, float uniform, Run run) {
        const uint32_t share = (count + block_.lanes() - 1) / block_.lanes();
        const uint32_t first = block_.lane() * share < count ? block_.lane() * share : count;
        const uint32_t end = first + share < count ? first + share : count;
        uint64_t mine = 0;
        run(first, end, [&](uint32_t, uint64_t mass) { mine += mass; });
        const double goal = static_cast<double>(uniform) * static_cast<double>(block_.sum(mine));
        uint64_t below = block_.scan(mine);
        uint64_t found = 0;
        if (static_cast<double>(below) <= goal && static_cast<double>(below + mine) > goal)
            run(first, end, [&](uint32_t id, uint64_t mass) {
                below += mass;
                if (found == 0 && mass != 0 && static_cast<double>(below) > goal) found = id + 1;
            });
        return static_cast<int32_t>(block_.max(found)) - 1;
    }

    // Log-probabilities are those of temperature 1.
    BLINK_DEV void write_logprobs(const PhaseBuffers& buffers, uint32_t index, int32_t token) {
        inverse_ = 1.0f;
        const Survey found = survey(0.0f);
        const double total = static_cast<double>(found.masses[kBars - 1]) / static_cast<double>(kMassScale);
        const float log_total = best_ + static_cast<float>(log(total));
        const auto top = static_cast<uint32_t>(least(row_.logprobs - 1, least(size_, kMaxTopLogprobs)));
        if (block_.lane() == 0) buffers.output_logprobs[index] = logits_[token] - log_total;
        if (top == 0) return;
        uint32_t bar = 0;
        while (bar + 1 < kBars && found.counts[bar] < top) bar += 1;
        const uint32_t listed = list(found.bars[bar], [](float, float logit) { return logit; });
        uint64_t last = ~uint64_t{0};
        for (uint32_t k = 0; k < top; ++k) {
            uint64_t best = 0;
            for (uint32_t i = block_.lane(); i < listed; i += block_.lanes())
                if (scratch_[i] < last && scratch_[i] > best) best = scratch_[i];
            last = block_.max(best);
            if (block_.lane() != 0) continue;
            buffers.output_top_ids[index * kMaxTopLogprobs + k] = static_cast<int32_t>(id_of(last));
            buffers.output_top_logprobs[index * kMaxTopLogprobs + k] = logits_[id_of(last)] - log_total;
        }
    }

    Block& block_;
    const EngineTables& engine_;
    const SamplingRow& row_;
    float* logits_;
    uint64_t* scratch_;
    uint32_t size_;
    float best_ = 0.0f;
    float inverse_ = 1.0f;
};

}  // namespace blink
