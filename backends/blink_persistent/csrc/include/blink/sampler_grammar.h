// What a grammar allows of one row's logits: one source for a thread block and for one host thread.
//
// Of a Block it needs lane(), lanes(), sync() and max(u64); see sampler_block.h.
#pragma once

#include "float_bits.h"
#include "grammar_table.h"
#include "provisioned.h"

namespace blink {

template <class Block>
class GrammarMask {
  public:
    BLINK_DEV GrammarMask(Block& block, const int32_t* eos_token_ids, uint32_t eos_count, uint32_t vocabulary_size,
                          SamplingRow& row)
        : block_(block), eos_(eos_token_ids), eos_count_(eos_count), size_(vocabulary_size), row_(row),
          table_(row.grammar, row.grammar_words, vocabulary_size) {}

    // Brings the row's state up to its output, then makes the logits of all tokens that may not
    // follow minus infinity. `saved`: float[vocabulary_size + eos_count]. All lanes.
    //
    // Where the text may end, end-of-sequence ids keep their logits. Min_tokens forbids them only
    // as long as anything else may follow.
    BLINK_DEV void apply(float* logits, float* saved) {
        const GrammarRow row = table_.row(advance());
        const bool goes_on = row.mask != 0 || row.bytes != 0 || row.count != 0;
        const bool may_end = row.accepting && !(goes_on && (row_.flags & kSamplingSuppressEnd) != 0);
        const uint32_t lane = block_.lane(), lanes = block_.lanes();
        for (uint32_t i = lane; i < row.count; i += lanes)
            if (row.listed[2 * i] < size_) saved[i] = logits[row.listed[2 * i]];
        for (uint32_t i = lane; i < eos_count_; i += lanes)
            if (inside(eos_[i])) saved[row.count + i] = logits[eos_[i]];
        block_.sync();
        for (uint32_t id = lane; id < size_; id += lanes)
            if (table_.unlisted_class(row, id) == kNoGrammarClass) logits[id] = -infinity();
        block_.sync();
        for (uint32_t i = lane; i < row.count; i += lanes)
            if (row.listed[2 * i] < size_) logits[row.listed[2 * i]] = saved[i];
        for (uint32_t i = lane; may_end && i < eos_count_; i += lanes)
            if (inside(eos_[i])) logits[eos_[i]] = saved[row.count + i];
        block_.sync();
    }

  private:
    BLINK_DEV bool inside(int32_t id) const { return id >= 0 && static_cast<uint32_t>(id) < size_; }

    // The state after the whole output. Tokens that the grammar does not know leave it as it is.
    BLINK_DEV uint32_t advance() {
        const auto* output = reinterpret_cast<const int32_t*>(row_.output);
        const uint32_t first = row_.grammar_length;
        uint32_t state = row_.grammar_state;
        block_.sync();  // every lane has read what one of them writes below
        for (uint32_t i = first; i < row_.output_length; ++i) {
            const GrammarRow row = table_.row(state);
            const uint32_t found = class_of(row, static_cast<uint32_t>(output[i]));
            if (found != kNoGrammarClass) state = table_.target(row, found);
        }
        if (block_.lane() == 0) {
            row_.grammar_state = state;
            row_.grammar_length = row_.output_length;
        }
        return state;
    }

    BLINK_DEV uint32_t class_of(const GrammarRow& row, uint32_t token) {
        uint64_t listed = 0;  // the class, plus one
        for (uint32_t i = block_.lane(); i < row.count; i += block_.lanes())
            if (row.listed[2 * i] == token) listed = row.listed[2 * i + 1] + 1ull;
        listed = block_.max(listed);
        if (listed != 0) return static_cast<uint32_t>(listed - 1);
        return token < size_ ? table_.unlisted_class(row, token) : kNoGrammarClass;
    }

    Block& block_;
    const int32_t* eos_;
    uint32_t eos_count_;
    uint32_t size_;
    SamplingRow& row_;
    GrammarTable table_;
};

}  // namespace blink
