// What a sampler plugin is written against: a function that chooses one row's token.
//
//   template <class Block>
//   BLINK_DEV int32_t choose(blink::Choice<Block>& choice);
//
// All lanes of a row, of one block or of several, call it together, and each gets the same token;
// code that depends on choice.lane() alone must reach every call of mass() and draw(). One source is
// compiled for the GPU, into the last kernel of each graph, and for the host. The server has applied
// bias, penalties, suppressed end tokens and grammar before, takes the best token itself where the
// temperature is 0, and writes the log-probabilities afterwards.
//
// Options are constants: config.json's "sampler_options" as option::<name>.
#pragma once

#include "sampler_block.h"

namespace blink {

// One row. A token's weight is exp((logit - best) / temperature), so the best token weighs 1.
template <class Block>
class Choice : RowMasses<Block> {
    using Masses = RowMasses<Block>;

  public:
    BLINK_DEV Choice(Block& block, float* logits, uint64_t* scratch, uint32_t size, float best, SamplingRow& row)
        : Masses(block, logits, scratch, size), row_(row) {
        this->best_ = best;
        set_temperature(row.temperature);
    }

    BLINK_DEV uint32_t size() const { return this->size_; }
    BLINK_DEV uint32_t lane() const { return this->block_.lane(); }
    BLINK_DEV uint32_t lanes() const { return this->block_.lanes(); }
    // What the request asked for: temperature, top_p, its tokens so far, its position, ...
    BLINK_DEV const SamplingRow& row() const { return row_; }

    BLINK_DEV float logit(uint32_t id) const { return this->logits_[id]; }
    BLINK_DEV float weight(uint32_t id) const { return Masses::weight(this->logits_[id]); }
    // Uniform in [0, 1): the same for the same seed and position, whatever the batch.
    BLINK_DEV float uniform() const { return uniform_at(row_.seed, row_.position); }

    // From here on weights are those of another temperature, above 0.
    BLINK_DEV void set_temperature(float temperature) {
        // A reciprocal of infinity would turn the best logit's zero distance into NaN.
        this->inverse_ = fminf(1.0f / temperature, 3.402823466e38f);
    }

    // The sum of the weights that are at least `floor`, the same whatever the number of lanes.
    // All lanes.
    BLINK_DEV double mass(float floor) {
        uint64_t mine = 0;
        this->template visit<kFew>([&](uint32_t, float logit) {
            const float w = Masses::weight(logit);
            mine += w >= floor ? Masses::mass(w) : 0;
        });
        return static_cast<double>(this->block_.sum(mine)) / static_cast<double>(kMassScale);
    }

    // Draws, by uniform(), one of the tokens whose weight is at least `floor` (1 at most), in
    // proportion to their weights. All lanes.
    BLINK_DEV int32_t draw(float floor) {
        const uint32_t listed = this->list(fminf(floor, 1.0f), [](float weight, float) { return weight; });
        if (listed <= kShortList) return this->walk_list(this->block_.local(), listed, uniform(), 0);
        return this->walk_list(this->block_, listed, uniform(), 0);
    }

    // A number that a request keeps from one token to the next; 0 for its first.
    BLINK_DEV float kept() const { return from_bits(row_.kept); }
    // All lanes; none may call kept() again for this token.
    BLINK_DEV void keep(float value) {
        this->block_.sync();
        if (lane() == 0) row_.kept = bits_of(value);
    }

  private:
    SamplingRow& row_;
};

// The sampler of a plugin whose `choose` is `Plugin::choose`.
template <class Block, class Plugin>
class PluginSampler : BlockSampler<Block> {
    using Base = BlockSampler<Block>;

  public:
    // As BlockSampler's.
    BLINK_DEV PluginSampler(Block& block, const EngineTables& engine, SamplingRow& row, float* logits,
                            uint64_t* scratch)
        : Base(block, engine, row, logits, scratch) {}

    BLINK_DEV void sample(const PhaseBuffers& buffers, uint32_t index) {
        this->adjust();
        const uint64_t top = this->best_key();
        int32_t token = -1;
        if (top != 0) {
            this->best_ = this->value_of(top);
            token = static_cast<int32_t>(this->id_of(top));
            if (this->row_.temperature != 0.0f) {
                Choice<Block> choice(this->block_, this->logits_, this->scratch_, this->size_, this->best_, this->row_);
                token = Plugin::choose(choice);
                if (!this->inside(token)) token = -1;
            }
            this->block_.sync();
            if (this->row_.logprobs != 0 && token >= 0) this->write_logprobs(buffers, index, token);
        }
        if (this->block_.lane() == 0) buffers.output_tokens[index] = token;
    }
};

}  // namespace blink
