// A vocabulary's tokens as one tree of bytes, walked in depth-first order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace blink {

class TokenTrie {
  public:
    struct Node {
        uint32_t end;    // index past the last node below this one
        uint32_t first;  // its tokens are tokens()[first .. next node's first)
        uint16_t depth;  // bytes before its own
        uint8_t byte;
    };

    // Token i has the bytes [offsets[i], offsets[i + 1]); one without bytes is never chosen.
    TokenTrie(const uint8_t* bytes, const uint64_t* offsets, uint32_t count) : vocabulary_size_(count) {
        const auto text = [&](uint32_t id) {
            return std::string_view(reinterpret_cast<const char*>(bytes) + offsets[id], offsets[id + 1] - offsets[id]);
        };
        tokens_.resize(count);
        std::iota(tokens_.begin(), tokens_.end(), 0u);
        std::erase_if(tokens_, [&](uint32_t id) { return text(id).empty() || text(id).size() > kLongestToken; });
        std::sort(tokens_.begin(), tokens_.end(),
                  [&](uint32_t a, uint32_t b) { return text(a) == text(b) ? a < b : text(a) < text(b); });
        std::vector<uint32_t> open;  // nodes of the present path
        std::string_view before;
        for (uint32_t place = 0; place < tokens_.size(); ++place) {
            const std::string_view token = text(tokens_[place]);
            const auto shared = static_cast<size_t>(
                std::mismatch(token.begin(), token.end(), before.begin(), before.end()).first - token.begin());
            close(open, shared);
            for (size_t at = shared; at < token.size(); ++at) {
                open.push_back(static_cast<uint32_t>(nodes_.size()));
                // An inner node's tokens end where they begin: at those of the node behind it.
                nodes_.push_back({0, place, static_cast<uint16_t>(at), static_cast<uint8_t>(token[at])});
            }
            before = token;
        }
        close(open, 0);
        nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), 0, 0});  // ends the last node's tokens
    }

    uint32_t vocabulary_size() const { return vocabulary_size_; }
    uint32_t node_count() const { return static_cast<uint32_t>(nodes_.size() - 1); }
    const Node& node(uint32_t index) const { return nodes_[index]; }
    const std::vector<uint32_t>& tokens() const { return tokens_; }

    static constexpr size_t kLongestToken = 4096;

  private:
    void close(std::vector<uint32_t>& open, size_t depth) {
        for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
    }

    std::vector<Node> nodes_;
    std::vector<uint32_t> tokens_;  // in the order of their bytes
    uint32_t vocabulary_size_;
};

}  // namespace blink
