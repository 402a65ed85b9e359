// Byte pair encoding of one word: the rule of the lowest rank first, the leftmost of equal ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "merges.h"

namespace blink::bpe {

// A token of the word under way, in a list that skips what was merged away.
struct alignas(16) Symbol {
    uint32_t token;
    uint32_t next;  // place of the symbol after it, kNone for the last
    Merge merge;    // with the symbol after it; rank kNone where no rule joins them
};
static_assert(sizeof(Symbol) == 16);

class Merging {
  public:
    // Begins a word of at most so many symbols.
    void start(size_t capacity) {
        symbols_.clear();
        symbols_.reserve(capacity);
    }

    void add(uint32_t token) { symbols_.push_back({token, static_cast<uint32_t>(symbols_.size() + 1), {}}); }

    // Merges what was added and appends the tokens that are left.
    void finish(const Merges& merges, std::vector<uint32_t>& tokens) {
        if (symbols_.empty()) return;
        symbols_.back().next = kNone;
        for (Symbol& symbol : symbols_) refresh(merges, symbol);
        if (symbols_.size() <= kShort) {
            merge_by_looking(merges);
        } else {
            merge_by_queue(merges);
        }
        for (uint32_t at = 0; at != kNone; at = symbols_[at].next) tokens.push_back(symbols_[at].token);
    }

    size_t capacity() const {
        return symbols_.capacity() * sizeof(Symbol) + previous_.capacity() * sizeof(uint32_t) +
               queue_.capacity() * sizeof(uint64_t);
    }

  private:
    static constexpr size_t kShort = 48;  // above it the queue costs less than looking at all symbols

    void refresh(const Merges& merges, Symbol& symbol) const {
        symbol.merge =
            symbol.next == kNone ? Merge{kNone, kNone} : merges.find(symbol.token, symbols_[symbol.next].token);
    }

    // Puts what they become into the place of a symbol and the one after it, which leaves the list.
    Symbol& merge_at(const Merges& merges, uint32_t at) {
        Symbol& symbol = symbols_[at];
        Symbol& gone = symbols_[symbol.next];
        gone.merge.rank = kNone;
        symbol.token = symbol.merge.token;
        symbol.next = gone.next;
        refresh(merges, symbol);
        return symbol;
    }

    void merge_by_looking(const Merges& merges) {
        while (true) {
            uint32_t best = kNone, rank = kNone, before_best = kNone;
            for (uint32_t at = 0, before = kNone; at != kNone; before = at, at = symbols_[at].next) {
                if (symbols_[at].merge.rank >= rank) continue;
                rank = symbols_[at].merge.rank;
                best = at;
                before_best = before;
            }
            if (best == kNone) return;
            merge_at(merges, best);
            if (before_best != kNone) refresh(merges, symbols_[before_best]);
        }
    }

    void merge_by_queue(const Merges& merges) {
        previous_.resize(symbols_.size());
        queue_.clear();
        for (uint32_t at = 0; at < symbols_.size(); ++at) {
            previous_[at] = at - 1;  // kNone for the first
            if (symbols_[at].merge.rank != kNone) queue_.push_back(entry(at));
        }
        std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
        while (!queue_.empty()) {
            std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
            const uint64_t top = queue_.back();
            queue_.pop_back();
            const auto at = static_cast<uint32_t>(top);
            if (symbols_[at].merge.rank != top >> 32) continue;  // has changed since
            const Symbol& symbol = merge_at(merges, at);
            if (symbol.next != kNone) previous_[symbol.next] = at;
            push(at);
            if (const uint32_t before = previous_[at]; before != kNone) {
                refresh(merges, symbols_[before]);
                push(before);
            }
        }
    }

    uint64_t entry(uint32_t at) const { return uint64_t{symbols_[at].merge.rank} << 32 | at; }

    void push(uint32_t at) {
        if (symbols_[at].merge.rank == kNone) return;
        queue_.push_back(entry(at));
        std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
    }

    std::vector<Symbol> symbols_;
    std::vector<uint32_t> previous_;
    std::vector<uint64_t> queue_;
};

}  // namespace blink::bpe
