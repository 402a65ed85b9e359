// The word patterns of known pre-tokenizers, told as runs of classes instead of regular expressions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text_classes.h"

namespace blink::bpe {

enum class Pattern : uint8_t { kGpt2, kGpt2Digits, kLlama3, kQwen2 };

// The flag of the characters that a pattern's numbers consist of.
inline ClassFlag number_flag(Pattern pattern) { return pattern == Pattern::kGpt2Digits ? kNumeric : kNumber; }

namespace patterns {

// Bytes of 's 't 'm 'd 'll 've 're at an apostrophe, 0 for none. Where case is ignored, the long s is an s.
inline size_t contraction(std::string_view text, size_t at, size_t end, bool ignore_case) {
    auto letter = [&](size_t place) {
        if (at + place >= end) return '\0';
        const char byte = text[at + place];
        return ignore_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte | 0x20) : byte;
    };
    switch (letter(1)) {
        case 's':
        case 't':
        case 'm':
        case 'd': return 2;
        case 'l': return letter(2) == 'l' ? 3 : 0;
        case 'v':
        case 'r': return letter(2) == 'e' ? 3 : 0;
        case '\xC5': return ignore_case && letter(2) == '\xBF' ? 3 : 0;
        default: return 0;
    }
}

// \s+(?!\S)|\s+ at white space whose run ends at `run_end`: the last character is left to what follows it.
inline size_t space_end(const TextClasses& classes, size_t at, size_t run_end, size_t end) {
    if (run_end == end) return run_end;
    const size_t last = previous_character(classes.text(), run_end);
    return last == at ? run_end : last;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
inline size_t gpt2_word_end(const TextClasses& classes, size_t at, size_t end) {
    const char first = classes.text()[at];
    if (first == '\'') {
        if (const size_t size = contraction(classes.text(), at, end, false)) return at + size;
    }
    const size_t body = first == ' ' && at + 1 < end ? at + 1 : at;
    for (const auto field : {&Block::letter, &Block::other, &Block::number}) {
        if (classes.is(field, body)) return classes.run_end(field, body, end);
    }
    return space_end(classes, at, classes.run_end(&Block::space, at, end), end);
}

// The end of [\r\n]*.
inline size_t lines_end(std::string_view text, size_t at, size_t end) {
    while (at < end && (text[at] == '\n' || text[at] == '\r')) ++at;
    return at;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at white space.
inline size_t blank_end(const TextClasses& classes, size_t at, size_t end) {
    const size_t run_end = classes.run_end(&Block::space, at, end);
    const size_t line = classes.text().substr(at, run_end - at).find_last_of("\r\n");
    return line != std::string_view::npos ? at + line + 1 : space_end(classes, at, run_end, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,kDigits}
// | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <size_t kDigits>
size_t gpt4_word_end(const TextClasses& classes, size_t at, size_t end) {
    const std::string_view text = classes.text();
    const char first = text[at];
    if (classes.is(&Block::letter, at)) return classes.run_end(&Block::letter, at, end);
    if (classes.is(&Block::number, at)) {
        size_t number = at;
        for (size_t i = 0; i < kDigits && number < end && classes.is(&Block::number, number); ++i) {
            number += character_size(text[number]);
        }
        return number;
    }
    if (first == '\'') {
        if (const size_t size = contraction(text, at, end, true)) return at + size;
    }
    const size_t second = at + character_size(first);
    if (second < end && first != '\r' && first != '\n' && classes.is(&Block::letter, second)) {
        return classes.run_end(&Block::letter, second, end);
    }
    const size_t body = first == ' ' && second < end ? second : at;
    if (classes.is(&Block::other, body)) return lines_end(text, classes.run_end(&Block::other, body, end), end);
    return blank_end(classes, at, end);
}

}  // namespace patterns

// Cuts the classified text into words and gives each one's start and end to `word`.
template <class Word>
void for_each_word(const TextClasses& classes, Pattern pattern, Word word) {
    const size_t size = classes.text().size();
    auto cut = [&](size_t at, size_t end, auto word_end) {
        while (at < end) {
            const size_t next = word_end(classes, at, end);
            word(at, next);
            at = next;
        }
    };
    switch (pattern) {
        case Pattern::kGpt2: return cut(0, size, patterns::gpt2_word_end);
        case Pattern::kLlama3: return cut(0, size, patterns::gpt4_word_end<3>);
        case Pattern::kQwen2: return cut(0, size, patterns::gpt4_word_end<1>);
        case Pattern::kGpt2Digits: break;
    }
    // Each numeric character is a word; what is between them is cut as if it stood alone.
    for (size_t at = 0; at < size;) {
        const size_t number = classes.find(&Block::number, at, size);
        cut(at, number, patterns::gpt2_word_end);
        at = number;
        if (number < size) {
            at += character_size(classes.text()[number]);
            word(number, at);
        }
    }
}

}  // namespace blink::bpe
