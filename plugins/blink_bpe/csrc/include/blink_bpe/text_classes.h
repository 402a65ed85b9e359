// The classes of a text's characters as bits, and the ends of runs of one class.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "byte_masks.h"
#include "unicode_classes.h"
#include "utf8.h"

namespace blink::bpe {

class TextClasses {
  public:
    using Field = uint64_t Block::*;

    // Classifies UTF-8; `number` says which flag makes a character a number. Grows, never shrinks.
    void assign(std::string_view text, ClassFlag number, Classify classify) {
        text_ = text;
        const size_t whole = text.size() / 64;
        if (blocks_.size() < whole + 1) blocks_.resize(whole + 1);
        classify(text.data(), blocks_.data(), whole);
        char rest[64] = {};
        text.copy(rest, 64, whole * 64);
        classify(rest, blocks_.data() + whole, 1);
        for (size_t n = 0; n <= whole; ++n) {
            if (blocks_[n].other != 0) classify_wide(n, number);
            blocks_[n].other = ~(blocks_[n].letter | blocks_[n].number | blocks_[n].space);
        }
    }

    std::string_view text() const { return text_; }
    size_t capacity() const { return blocks_.capacity() * sizeof(Block); }

    bool is(Field field, size_t at) const { return blocks_[at / 64].*field >> (at % 64) & 1; }

    // The first place from `at` on, `end` at the latest, whose byte is not of the class.
    size_t run_end(Field field, size_t at, size_t end) const {
        return first(at, end, [&](const Block& block) { return ~(block.*field); });
    }

    // The first place from `at` on, `end` at the latest, whose byte is of the class.
    size_t find(Field field, size_t at, size_t end) const {
        return first(at, end, [&](const Block& block) { return block.*field; });
    }

  private:
    template <class Bits>
    size_t first(size_t at, size_t end, Bits bits) const {
        size_t block = at / 64;
        uint64_t wanted = bits(blocks_[block]) >> (at % 64);
        if (wanted != 0) return std::min(end, at + std::countr_zero(wanted));
        while (++block * 64 < end) {
            wanted = bits(blocks_[block]);
            if (wanted != 0) return std::min(end, block * 64 + std::countr_zero(wanted));
        }
        return end;
    }

    // The characters of a block that are not ASCII; the last one's bytes may reach into the next.
    void classify_wide(size_t block, ClassFlag number) {
        uint64_t wide = blocks_[block].other;
        while (wide != 0) {
            const size_t at = block * 64 + std::countr_zero(wide);
            wide &= wide - 1;
            if (continues(text_[at])) continue;
            const Character character = character_at(text_, at);
            const uint8_t flags = kUnicodeClasses.of(character.code_point);
            if (flags & kLetter) {
                mark(&Block::letter, at, character.size);
            } else if (flags & number) {
                mark(&Block::number, at, character.size);
            } else if (flags & kSpace) {
                mark(&Block::space, at, character.size);
            }
        }
    }

    void mark(Field field, size_t at, size_t size) {
        const uint64_t bits = (uint64_t{1} << size) - 1;
        blocks_[at / 64].*field |= bits << (at % 64);
        if (at % 64 + size > 64) blocks_[at / 64 + 1].*field |= bits >> (64 - at % 64);
    }

    std::string_view text_;
    std::vector<Block> blocks_;
};

}  // namespace blink::bpe
