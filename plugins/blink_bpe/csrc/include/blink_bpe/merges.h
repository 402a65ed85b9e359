// The merge rules: a flat hash table, four rules a cache line.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace blink::bpe {

inline constexpr uint32_t kNone = ~uint32_t{0};  // no token, no rule, no place

// What a pair of tokens becomes, and how early: the lowest rank is merged first.
struct Merge {
    uint32_t rank, token;
};

struct MergeRule {
    uint32_t left, right;
    Merge merge;
};

class Merges {
  public:
    explicit Merges(const std::vector<MergeRule>& rules) : lines_(std::bit_ceil(rules.size() / 2 + 1)) {
        for (const MergeRule& rule : rules) insert(rule);
    }

    // {kNone, kNone} for a pair without a rule.
    Merge find(uint32_t left, uint32_t right) const {
        const uint64_t pair = join(left, right);
        for (size_t line = start(pair);; line = (line + 1) & (lines_.size() - 1)) {
            for (const Entry& entry : lines_[line].entries) {
                if (entry.pair == pair) return entry.merge;
                if (entry.pair == kFree) return {kNone, kNone};
            }
        }
    }

  private:
    static constexpr uint64_t kFree = ~uint64_t{0};

    struct Entry {
        uint64_t pair = kFree;
        Merge merge{};
    };
    struct alignas(64) Line {
        Entry entries[4];
    };
    static_assert(sizeof(Line) == 64);

    static uint64_t join(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

    size_t start(uint64_t pair) const {
        // Fibonacci hashing: the high half of the product depends on all bits of the pair.
        const uint64_t mixed = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15;
        return (mixed >> 32) & (lines_.size() - 1);
    }

    void insert(const MergeRule& rule) {
        const uint64_t pair = join(rule.left, rule.right);
        for (size_t line = start(pair);; line = (line + 1) & (lines_.size() - 1)) {
            for (Entry& entry : lines_[line].entries) {
                if (entry.pair != kFree && entry.pair != pair) continue;
                entry = {pair, rule.merge};
                return;
            }
        }
    }

    std::vector<Line> lines_;
};

}  // namespace blink::bpe
