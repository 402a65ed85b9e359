// A grammar as samplers read it: which tokens may follow, and what state they lead to.
//
// A table is position-independent; all offsets count 4-byte words from its start:
//
//   GrammarHeader | GrammarState[states] | masks, rows and targets, shared by the states
//
// A state's row says which tokens it allows and sorts them into classes: all tokens of its mask
// are of class 0, listed tokens are of the class beside them; a row of bytes has one for each token.
// targets[class] is the next state. Two states that sort the tokens alike share a row, whatever they
// lead to; state 0 is the first.
//
// The frontend writes tables, the scheduler checks only that one lies in its arena. So every access
// is bounded by `words`: a broken table allows nothing, and ends the request that uses it.
#pragma once

#include "types.h"

namespace blink {

constexpr uint32_t kGrammarMagic = 0x4d4d5247u;  // "GRMM", little-endian
constexpr uint32_t kNoGrammarClass = 0xffffffffu;
constexpr uint32_t kRefusedByte = 0xff;  // in a row of bytes: the token is not allowed

struct GrammarHeader {
    uint32_t magic;
    uint32_t words;  // of the whole table
    uint32_t states;
    uint32_t vocabulary_size;  // bits of a mask
    uint64_t hash;             // of all words behind the header
};

struct GrammarState {
    uint32_t row;        // offset of {mask, bytes, count, {token, class}[count] by token}
    uint32_t targets;    // offset of uint32_t[classes]
    uint32_t accepting;  // 1: the text may end here
};

// A row of a table. `mask` is the offset of a bit for every token, `bytes` of a byte for every token;
// 0 for none.
struct GrammarRow {
    uint32_t mask;
    uint32_t bytes;
    uint32_t count;
    const uint32_t* listed;  // {token, class}[count]
    uint32_t targets;
    bool accepting;
};

class GrammarTable {
  public:
    // `words` is what the record says; a table that says otherwise is empty.
    BLINK_HD GrammarTable(uint64_t address, uint32_t words, uint32_t vocabulary_size)
        : words_(reinterpret_cast<const uint32_t*>(address)), count_(words) {
        const auto* header = reinterpret_cast<const GrammarHeader*>(address);
        const bool whole = words >= kHeaderWords && header->magic == kGrammarMagic && header->words == words &&
                           header->vocabulary_size == vocabulary_size &&
                           fits(kHeaderWords, static_cast<uint64_t>(header->states) * kStateWords);
        states_ = whole ? header->states : 0;
        vocabulary_size_ = vocabulary_size;
    }

    // The row of a state; one that allows nothing where the table is broken.
    BLINK_HD GrammarRow row(uint32_t state) const {
        GrammarRow nothing{0, 0, 0, nullptr, 0, false};
        if (state >= states_) return nothing;
        const auto& s = *reinterpret_cast<const GrammarState*>(words_ + kHeaderWords + state * kStateWords);
        if (!fits(s.row, kRowWords)) return nothing;
        const uint32_t mask = words_[s.row], bytes = words_[s.row + 1], count = words_[s.row + 2];
        if (mask != 0 && !fits(mask, (vocabulary_size_ + 31) / 32)) return nothing;
        if (bytes != 0 && !fits(bytes, (vocabulary_size_ + 3) / 4)) return nothing;
        if (count > vocabulary_size_ || !fits(s.row + 0ull + kRowWords, 2ull * count)) return nothing;
        return {mask, bytes, count, words_ + s.row + kRowWords, s.targets, s.accepting != 0};
    }

    // The class of a token that is not listed, or kNoGrammarClass.
    BLINK_HD uint32_t unlisted_class(const GrammarRow& row, uint32_t token) const {
        if (row.bytes != 0) {
            const uint32_t found = words_[row.bytes + token / 4] >> 8 * (token % 4) & 0xff;
            return found == kRefusedByte ? kNoGrammarClass : found;
        }
        const bool masked = row.mask != 0 && (words_[row.mask + token / 32] >> token % 32 & 1) != 0;
        return masked ? 0 : kNoGrammarClass;
    }

    // The state that a class of `row` leads to.
    BLINK_HD uint32_t target(const GrammarRow& row, uint32_t of_class) const {
        const uint64_t at = static_cast<uint64_t>(row.targets) + of_class;
        return fits(at, 1) ? words_[at] : states_;
    }

  private:
    static constexpr uint32_t kHeaderWords = sizeof(GrammarHeader) / 4;
    static constexpr uint32_t kStateWords = sizeof(GrammarState) / 4;
    static constexpr uint32_t kRowWords = 3;

    BLINK_HD bool fits(uint64_t offset, uint64_t words) const { return offset + words <= count_; }

    const uint32_t* words_;
    uint32_t count_;
    uint32_t states_;
    uint32_t vocabulary_size_;
};

}  // namespace blink
