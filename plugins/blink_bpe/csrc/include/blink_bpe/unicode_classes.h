// What the patterns of pre-tokenizers and added tokens ask of a character.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace blink::bpe {

enum ClassFlag : uint8_t {
    kLetter = 1,     // \p{L}
    kNumber = 2,     // \p{N}, as Split and ByteLevel see it
    kSpace = 4,      // \s
    kNumeric = 8,    // what the Digits step isolates: a later Unicode's \p{N}
    kWord = 16,      // \w, next to an added token that is to be a single word
    kUnstable = 32,  // NFC may change a text that has it
};

// Each entry starts a run of characters of equal flags: code point << 8 | flags.
inline constexpr uint32_t kUnicodeRuns[] = {
#include "unicode_runs.inc"
};

// Flags by code point: pages of equal contents are stored once.
class UnicodeClasses {
  public:
    UnicodeClasses() {
        size_t run = 0;
        for (size_t number = 0; number < pages_.size(); ++number) {
            std::array<uint8_t, kPage> page;
            for (size_t i = 0; i < kPage; ++i) {
                while (run + 1 < std::size(kUnicodeRuns) && kUnicodeRuns[run + 1] >> 8 <= number * kPage + i) ++run;
                page[i] = static_cast<uint8_t>(kUnicodeRuns[run]);
            }
            auto same = std::find(stored_.begin(), stored_.end(), page);
            pages_[number] = static_cast<uint16_t>(same - stored_.begin());
            if (same == stored_.end()) stored_.push_back(page);
        }
    }

    uint8_t of(uint32_t code_point) const { return stored_[pages_[code_point / kPage]][code_point % kPage]; }

  private:
    static constexpr size_t kPage = 128;
    std::array<uint16_t, 0x110000 / kPage> pages_;
    std::vector<std::array<uint8_t, kPage>> stored_;
};

inline const UnicodeClasses kUnicodeClasses;

}  // namespace blink::bpe
