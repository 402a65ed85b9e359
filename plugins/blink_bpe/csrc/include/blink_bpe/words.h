// Words that are one token: a flat hash table of short ones, three a cache line, and a map of the others.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "merges.h"

namespace blink::bpe {

struct WordToken {
    std::string word;
    uint32_t token;
};

class Words {
  public:
    explicit Words(const std::vector<WordToken>& words) : lines_(std::bit_ceil(words.size() / 2 + 1)) {
        for (const WordToken& each : words) {
            if (each.word.empty()) continue;
            if (each.word.size() <= kShort) {
                insert(key_of(each.word, each.word.data() + each.word.size()), each.token);
            } else {
                long_words_.emplace(each.word, each.token);
            }
        }
    }

    // The token of a word, which is not empty and part of a text that ends at `text_end`; kNone if it is none.
    uint32_t find(std::string_view word, const char* text_end) const {
        if (word.size() > kShort) {
            const auto found = long_words_.find(word);
            return found == long_words_.end() ? kNone : found->second;
        }
        const Key key = key_of(word, text_end);
        for (size_t line = start(key);; line = (line + 1) & (lines_.size() - 1)) {
            const Line& entries = lines_[line];
            for (size_t i = 0; i < kPerLine; ++i) {
                if (entries.low[i] == key.low && entries.high[i] == key.high) return entries.token[i];
                if (entries.high[i] == 0) return kNone;
            }
        }
    }

  private:
    static constexpr size_t kShort = 15;
    static constexpr size_t kPerLine = 3;

    struct Key {
        uint64_t low, high;  // the bytes; the last one is their number, so that high is 0 for no word
    };
    struct alignas(64) Line {
        uint64_t low[kPerLine] = {}, high[kPerLine] = {};
        uint32_t token[kPerLine] = {};
    };
    static_assert(sizeof(Line) == 64);

    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
    };

    static Key key_of(std::string_view word, const char* text_end) {
        uint64_t parts[2] = {};
        if (text_end - word.data() >= 16) {
            std::memcpy(parts, word.data(), 16);  // of a size known beforehand: one instruction
        } else {
            std::memcpy(parts, word.data(), word.size());
        }
        const size_t bits = word.size() * 8;
        if (bits < 64) {
            parts[0] &= (uint64_t{1} << bits) - 1;
            parts[1] = 0;
        } else {
            parts[1] &= (uint64_t{1} << (bits - 64)) - 1;
        }
        return {parts[0], parts[1] | uint64_t{word.size()} << 56};
    }

    size_t start(Key key) const {
        const uint64_t mixed = (key.low ^ std::rotl(key.high, 23)) * 0x9E3779B97F4A7C15;
        return (mixed ^ mixed >> 32) & (lines_.size() - 1);
    }

    void insert(Key key, uint32_t token) {
        for (size_t line = start(key);; line = (line + 1) & (lines_.size() - 1)) {
            Line& entries = lines_[line];
            for (size_t i = 0; i < kPerLine; ++i) {
                if (entries.high[i] != 0) continue;
                entries.low[i] = key.low;
                entries.high[i] = key.high;
                entries.token[i] = token;
                return;
            }
        }
    }

    std::vector<Line> lines_;
    std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> long_words_;
};

}  // namespace blink::bpe
