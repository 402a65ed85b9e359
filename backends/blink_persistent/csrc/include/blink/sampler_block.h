// The default sampler for a thread block: the semantics of sampler_host.h, one block a row.
//
// One source for the GPU, where a row has one thread block or a cluster of them, and, lane by lane,
// for the host that tests it. What a Block must offer:
//
//   lane(), lanes(), sync()
//   sum(u64), max(u64), sums(u64[]) over all lanes, told to all
//   share(u64)                      sums of the lanes before this one and of all
//   width()                         lanes of a group: lane / width() is its number
//   group_share(u64)                as share, of the lanes of a group; all of a group call it
//   of_first(u64)                   what the first lane of the group has
//   local()                         itself, or of a cluster the lanes of one block, as such a Block
//   kBatch                          four logits each, that a lane has under way at most
//   add(u32*, v), set_bits(u32*, v) atomic among all lanes
//   take(u32*)                      atomic: reads and leaves 0
//   add(float*, v)                  atomic among all lanes
#pragma once

#include "provisioned.h"
#include "random.h"
#include "ring_layout.h"
#include "sampler_grammar.h"
#include "sampler_masses.h"

namespace blink {

constexpr uint32_t kPromptBit = 1u << 31;  // of a token's count: it is part of the prompt

template <class Block>
class BlockSampler : protected RowMasses<Block> {
  protected:
    using Masses = RowMasses<Block>;
    using Masses::best_;
    using Masses::block_;
    using Masses::first_id;
    using Masses::greatest_key;
    using Masses::id_of;
    using Masses::inverse_;
    using Masses::key;
    using Masses::least;
    using Masses::list;
    using Masses::logits_;
    using Masses::mass_from;
    using Masses::scratch_;
    using Masses::size_;
    using Masses::survey;
    using Masses::value_of;
    using Masses::walk;
    using Masses::walk_list;
    using typename Masses::Survey;

  public:
    // `logits` [vocabulary] are changed; `scratch` [vocabulary] may hold anything. All lanes.
    BLINK_DEV BlockSampler(Block& block, const EngineTables& engine, SamplingRow& row, float* logits, uint64_t* scratch)
        : Masses(block, logits, scratch, engine.vocabulary_size), engine_(engine), row_(row) {}

    // Chooses the token and writes the outputs of row `index` of a phase.
    BLINK_DEV void sample(const PhaseBuffers& buffers, uint32_t index) {
        adjust();
        const uint64_t top = best_key();
        int32_t token = -1;
        if (top != 0) {
            best_ = value_of(top);
            token = row_.temperature == 0.0f ? static_cast<int32_t>(id_of(top)) : draw();
            if (row_.logprobs != 0) write_logprobs(buffers, index, token);
        }
        if (block_.lane() == 0) buffers.output_tokens[index] = token;
    }

  protected:
    BLINK_DEV bool inside(int32_t id) const { return id >= 0 && static_cast<uint32_t>(id) < size_; }

    // Bias, penalties, suppressed end tokens, grammar.
    BLINK_DEV void adjust() {
        const uint32_t lane = block_.lane(), lanes = block_.lanes();
        const auto* bias = reinterpret_cast<const int32_t*>(row_.bias);
        for (uint32_t i = lane; i < row_.bias_count; i += lanes)
            if (inside(bias[2 * i])) block_.add(logits_ + bias[2 * i], reinterpret_cast<const float*>(bias)[2 * i + 1]);
        if (row_.bias_count != 0) block_.sync();
        if (row_.repetition_penalty != 1.0f || row_.presence_penalty != 0.0f || row_.frequency_penalty != 0.0f)
            penalize();
        const bool constrained = row_.grammar_words != 0;
        if ((row_.flags & kSamplingSuppressEnd) != 0 && !constrained) {
            forbid(reinterpret_cast<const int32_t*>(row_.stop), row_.stop_count);
            if ((row_.flags & kSamplingKeepEos) == 0) forbid(engine_.eos_token_ids, engine_.eos_count);
            block_.sync();
        }
        if (constrained)
            GrammarMask<Block>(block_, engine_.eos_token_ids, engine_.eos_count, size_, row_)
                .apply(logits_, reinterpret_cast<float*>(scratch_));
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

    // The best token's key; 0 where a logit is NaN or infinite, or none is above minus infinity.
    BLINK_DEV uint64_t best_key() {
        float best = -infinity();
        uint32_t at = first_id();
        bool bad = false;
        this->visit_often([&](uint32_t id, float logit) {
            bad |= !(logit < infinity());
            at = logit > best ? id : at;
            best = logit > best ? logit : best;
        });
        const uint64_t mine = at < this->end_ ? key(best, at) : 0;
        const uint64_t top = block_.max(bad ? ~uint64_t{0} : mine);
        if (top == ~uint64_t{0} || value_of(top) == -infinity()) return 0;
        return top;
    }

    BLINK_DEV int32_t draw() {
        // A reciprocal of infinity would turn the best logit's zero distance into NaN.
        inverse_ = fminf(1.0f / row_.temperature, 3.402823466e38f);
        const float uniform = uniform_at(row_.seed, row_.position);
        if (row_.min_p <= 0.0f && row_.top_k <= 0 && row_.top_p >= 1.0f) return walk(uniform);
        const Survey found = survey(row_.min_p);
        const uint64_t wanted = least(static_cast<uint64_t>(row_.top_k), found.counts[kBars - 1]);
        const uint64_t whole = found.masses[kBars - 1];
        const float bar = found.highest(
            [&](uint32_t j) { return row_.top_k > 0 ? found.counts[j] >= wanted : is_share(found.masses[j], whole); });
        const uint32_t listed = list(bar, [](float weight, float) { return weight; });
        if (listed <= kShortList) return draw_listed(block_.local(), listed, uniform, wanted, whole);
        return draw_listed(block_, listed, uniform, wanted, whole);
    }

    // `wanted` of the listed tokens, of all tokens' mass `whole`. All of `lanes`.
    template <class Lanes>
    BLINK_DEV int32_t draw_listed(Lanes& lanes, uint32_t listed, float uniform, uint64_t wanted, uint64_t whole) {
        uint64_t lowest = 0;
        if (row_.top_k > 0) {
            lowest = greatest_key(
                lanes, listed, [](uint64_t) { return uint64_t{1}; }, [&](uint64_t count) { return count >= wanted; });
            whole = mass_from(lanes, lowest, listed);
        }
        if (row_.top_p < 1.0f) {
            const uint64_t top = greatest_key(
                lanes, listed, [](uint64_t key) { return Masses::mass_of(key); },
                [&](uint64_t mass) { return is_share(mass, whole); });
            lowest = top > lowest ? top : lowest;
        }
        return walk_list(lanes, listed, uniform, lowest);
    }

    // Do tokens of this mass reach top_p of `whole`? At least one token always does.
    BLINK_DEV bool is_share(uint64_t part, uint64_t whole) const {
        return part > 0 && static_cast<double>(part) >= static_cast<double>(row_.top_p) * static_cast<double>(whole);
    }

    // Log-probabilities are those of temperature 1.
    BLINK_DEV void write_logprobs(const PhaseBuffers& buffers, uint32_t index, int32_t token) {
        inverse_ = 1.0f;
        const Survey found = survey(0.0f);
        const double total = static_cast<double>(found.masses[kBars - 1]) / static_cast<double>(kMassScale);
        const float log_total = best_ + static_cast<float>(log(total));
        const auto top = least(row_.logprobs - 1, least(size_, uint32_t{kMaxTopLogprobs}));
        if (block_.lane() == 0) buffers.output_logprobs[index] = logits_[token] - log_total;
        if (top == 0) return;
        const float bar = found.highest([&](uint32_t j) { return found.counts[j] >= top; });
        const uint32_t listed = list(bar, [](float, float logit) { return logit; });
        if (listed <= kShortList)
            write_listed(block_.local(), buffers, index, listed, top, log_total);
        else
            write_listed(block_, buffers, index, listed, top, log_total);
    }

    template <class Lanes>
    BLINK_DEV void write_listed(Lanes& lanes, const PhaseBuffers& buffers, uint32_t index, uint32_t listed,
                                uint32_t top, float log_total) {
        uint64_t last = ~uint64_t{0};
#pragma unroll 1
        for (uint32_t k = 0; k < top; ++k) {
            uint64_t best = 0;
#pragma unroll 1
            for (uint32_t i = lanes.lane(); i < listed; i += lanes.lanes())
                if (scratch_[i] < last && scratch_[i] > best) best = scratch_[i];
            last = lanes.max(best);
            if (block_.lane() != 0) continue;
            buffers.output_top_ids[index * kMaxTopLogprobs + k] = static_cast<int32_t>(id_of(last));
            buffers.output_top_logprobs[index * kMaxTopLogprobs + k] = value_of(last) - log_total;
        }
    }

    const EngineTables& engine_;
    SamplingRow& row_;
};

}  // namespace blink
