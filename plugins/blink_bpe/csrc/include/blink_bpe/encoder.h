// Text to token ids: added tokens, then words, then merges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.h"
#include "byte_masks.h"
#include "merges.h"
#include "merging.h"
#include "patterns.h"
#include "text_classes.h"
#include "words.h"

namespace blink::bpe {

// All that encoding writes to; kept for the next text, so that in time nothing is allocated any more.
struct Workspace {
    TextClasses classes;
    Merging merging;
    std::vector<uint32_t> tokens;

    size_t capacity() const { return classes.capacity() + merging.capacity() + tokens.capacity() * sizeof(uint32_t); }
};

// What a tokenizer.json says, in terms of bytes and ids.
struct Recipe {
    Pattern pattern;
    bool ignore_merges;                 // a word that is a token is taken whole
    std::array<uint32_t, 256> bytes;    // token of each byte; kNone: it is dropped
    std::vector<WordToken> vocabulary;  // tokens that text can be merged to
    std::vector<MergeRule> rules;
    std::vector<AddedToken> added;       // found in the text as it is
    std::vector<AddedToken> normalized;  // found in what the normalizer makes of it
};

class Encoder {
  public:
    explicit Encoder(Recipe recipe, Classifier classifier = best_classifier())
        : pattern_(recipe.pattern), classifier_(classifier), bytes_(recipe.bytes), merges_(recipe.rules),
          words_(whole_words(recipe)), added_(std::move(recipe.added)), normalized_(std::move(recipe.normalized)) {}

    // Writes the ids of `text`, UTF-8, to `workspace.tokens`. `normalize` takes and returns text.
    template <class Normalize>
    void encode(std::string_view text, Workspace& workspace, Normalize normalize) const {
        workspace.tokens.clear();
        auto token = [&](uint32_t id) { workspace.tokens.push_back(id); };
        auto plain = [&](std::string_view part) { encode_plain(part, workspace); };
        auto raw = [&](std::string_view part) {
            const auto& normal = normalize(part);
            normalized_.split(normal, plain, token);
        };
        added_.split(text, raw, token);
    }

    void encode(std::string_view text, Workspace& workspace) const {
        encode(text, workspace, [](std::string_view part) { return part; });
    }

    const char* classifier() const { return classifier_.name; }

  private:
    void encode_plain(std::string_view text, Workspace& workspace) const {
        const char* text_end = text.data() + text.size();
        workspace.classes.assign(text, number_flag(pattern_), classifier_.classify);
        for_each_word(workspace.classes, pattern_, [&](size_t begin, size_t end) {
            const std::string_view word = text.substr(begin, end - begin);
            if (const uint32_t token = words_.find(word, text_end); token != kNone) {
                workspace.tokens.push_back(token);
            } else {
                merge(word, workspace.merging, workspace.tokens);
            }
        });
    }

    void merge(std::string_view word, Merging& merging, std::vector<uint32_t>& tokens) const {
        merging.start(word.size());
        for (const char byte : word) {
            if (const uint32_t token = bytes_[static_cast<uint8_t>(byte)]; token != kNone) merging.add(token);
        }
        merging.finish(merges_, tokens);
    }

    // The tokens that a word of their bytes becomes; with ignore_merges all.
    std::vector<WordToken> whole_words(const Recipe& recipe) const {
        std::vector<WordToken> whole;
        Merging merging;
        std::vector<uint32_t> tokens;
        for (const WordToken& each : recipe.vocabulary) {
            tokens.clear();
            if (!recipe.ignore_merges) merge(each.word, merging, tokens);
            if (recipe.ignore_merges || (tokens.size() == 1 && tokens[0] == each.token)) whole.push_back(each);
        }
        return whole;
    }

    Pattern pattern_;
    Classifier classifier_;
    std::array<uint32_t, 256> bytes_;
    Merges merges_;
    Words words_;
    AddedTokens added_, normalized_;
};

// Whether NFC may change a text.
inline bool may_change(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const Character character = character_at(text, at);
        if (character.size > 1 && kUnicodeClasses.of(character.code_point) & kUnstable) return true;
        at += character.size;
    }
    return false;
}

}  // namespace blink::bpe
