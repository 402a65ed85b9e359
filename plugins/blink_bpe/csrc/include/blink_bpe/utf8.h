// Characters of a text that is known to be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace blink::bpe {

struct Character {
    uint32_t code_point;
    size_t size;  // bytes
};

inline bool continues(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

inline size_t character_size(char first) {
    const auto byte = static_cast<uint8_t>(first);
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character that starts at `at`, which is inside the text.
inline Character character_at(std::string_view text, size_t at) {
    auto low = [&](size_t place) { return static_cast<uint32_t>(text[at + place]) & 0x3F; };
    const auto first = static_cast<uint8_t>(text[at]);
    switch (character_size(text[at])) {
        case 1: return {first, 1};
        case 2: return {(first & 0x1Fu) << 6 | low(1), 2};
        case 3: return {(first & 0x0Fu) << 12 | low(1) << 6 | low(2), 3};
        default: return {(first & 0x07u) << 18 | low(1) << 12 | low(2) << 6 | low(3), 4};
    }
}

// Where the character that ends before `end` starts; `end` is not 0.
inline size_t previous_character(std::string_view text, size_t end) {
    do --end;
    while (continues(text[end]));
    return end;
}

}  // namespace blink::bpe
