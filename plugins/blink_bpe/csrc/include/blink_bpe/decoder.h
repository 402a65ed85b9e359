// Token ids to bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blink::bpe {

class Decoder {
  public:
    // Bytes by id, and the ids that are special.
    Decoder(const std::vector<std::string>& tokens, const std::vector<uint32_t>& special) : special_(tokens.size()) {
        ends_.reserve(tokens.size());
        for (const std::string& token : tokens) {
            bytes_ += token;
            ends_.push_back(bytes_.size());
        }
        for (const uint32_t id : special) special_.at(id) = true;
    }

    // Empty for an id that is no token.
    std::string_view bytes(uint32_t id) const {
        if (id >= ends_.size()) return {};
        const size_t begin = id == 0 ? 0 : ends_[id - 1];
        return std::string_view(bytes_).substr(begin, ends_[id] - begin);
    }

    void append(uint32_t id, bool skip_special, std::string& text) const {
        if (skip_special && id < special_.size() && special_[id]) return;
        text += bytes(id);
    }

  private:
    std::string bytes_;
    std::vector<size_t> ends_;
    std::vector<bool> special_;
};

}  // namespace blink::bpe
