// Finds added tokens in a text, from left to right, the longest where several start.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "merges.h"
#include "unicode_classes.h"
#include "utf8.h"

namespace blink::bpe {

struct AddedToken {
    std::string content;
    uint32_t token;
    bool single_word;  // only where no word character is next to it
    bool lstrip;       // takes the white space before it
    bool rstrip;       // takes the white space after it
};

class AddedTokens {
  public:
    // Contents are not empty, and no two are equal.
    explicit AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
        std::sort(tokens_.begin(), tokens_.end(), [](auto& a, auto& b) { return a.content < b.content; });
        nodes_.push_back({});
        build(0, 0, tokens_.size(), 0);
        for (const AddedToken& each : tokens_) firsts_.set(static_cast<uint8_t>(each.content[0]));
    }

    // Gives the parts of `text` in their order: text to `on_text(string_view)`, tokens to `on_token(id)`.
    template <class OnText, class OnToken>
    void split(std::string_view text, OnText on_text, OnToken on_token) const {
        size_t done = 0;
        for (size_t at = next_start(text, 0); at < text.size(); at = next_start(text, at)) {
            const AddedToken* found = longest(text.substr(at));
            if (found == nullptr) {
                ++at;
                continue;
            }
            size_t begin = at, end = at + found->content.size();
            at = end;  // even if the match is refused, or takes more
            if (found->single_word && !alone(text, begin, end)) continue;
            if (found->lstrip) begin = std::max(spaces_begin(text, begin), done);
            if (found->rstrip) end = spaces_end(text, end);
            if (done < begin) on_text(text.substr(done, begin - done));
            on_token(found->token);
            done = end;
        }
        if (done < text.size()) on_text(text.substr(done));
    }

  private:
    struct Node {
        uint32_t edges = 0, edge_count = 0;
        uint32_t token = kNone;  // place of the token that ends here
    };
    struct Edge {
        char byte;
        uint32_t node;
    };

    // The tokens of [first, last) have the first `depth` bytes in common, which lead to `node`.
    void build(uint32_t node, size_t first, size_t last, size_t depth) {
        if (first < last && tokens_[first].content.size() == depth) nodes_[node].token = static_cast<uint32_t>(first++);
        std::vector<size_t> starts;
        for (size_t i = first; i < last; ++i) {
            if (i == first || tokens_[i].content[depth] != tokens_[i - 1].content[depth]) starts.push_back(i);
        }
        const auto edges = static_cast<uint32_t>(edges_.size());
        nodes_[node].edges = edges;
        nodes_[node].edge_count = static_cast<uint32_t>(starts.size());
        for (const size_t start : starts) {
            edges_.push_back({tokens_[start].content[depth], static_cast<uint32_t>(nodes_.size())});
            nodes_.push_back({});
        }
        starts.push_back(last);
        for (size_t i = 0; i + 1 < starts.size(); ++i)
            build(edges_[edges + i].node, starts[i], starts[i + 1], depth + 1);
    }

    size_t next_start(std::string_view text, size_t at) const {
        if (nodes_[0].edge_count == 0 || at >= text.size()) return text.size();
        if (nodes_[0].edge_count == 1) {
            const void* found = std::memchr(text.data() + at, edges_[0].byte, text.size() - at);
            return found == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(found) - text.data());
        }
        while (at < text.size() && !firsts_[static_cast<uint8_t>(text[at])]) ++at;
        return at;
    }

    const AddedToken* longest(std::string_view text) const {
        const AddedToken* best = nullptr;
        uint32_t node = 0;
        for (const char byte : text) {
            const Edge* edge = edges_.data() + nodes_[node].edges;
            const Edge* last = edge + nodes_[node].edge_count;
            edge = std::find_if(edge, last, [byte](const Edge& each) { return each.byte == byte; });
            if (edge == last) break;
            node = edge->node;
            if (nodes_[node].token != kNone) best = &tokens_[nodes_[node].token];
        }
        return best;
    }

    static bool is(ClassFlag flag, std::string_view text, size_t at) {
        return (kUnicodeClasses.of(character_at(text, at).code_point) & flag) != 0;
    }

    static bool alone(std::string_view text, size_t begin, size_t end) {
        return (begin == 0 || !is(kWord, text, previous_character(text, begin))) &&
               (end == text.size() || !is(kWord, text, end));
    }

    static size_t spaces_begin(std::string_view text, size_t end) {
        while (end > 0) {
            const size_t before = previous_character(text, end);
            if (!is(kSpace, text, before)) break;
            end = before;
        }
        return end;
    }

    static size_t spaces_end(std::string_view text, size_t at) {
        while (at < text.size() && is(kSpace, text, at)) at += character_size(text[at]);
        return at;
    }

    std::vector<AddedToken> tokens_;
    std::vector<Node> nodes_;
    std::vector<Edge> edges_;
    std::bitset<256> firsts_;
};

}  // namespace blink::bpe
