// The tokenizer against a plain one, on random text, in buffers that end where the text ends.
//
// Every way of classifying bytes gives the same ids, all ids together are the text again, and a text
// that has been encoded once is encoded without allocating.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blink_bpe/decoder.h"
#include "blink_bpe/encoder.h"

using namespace blink::bpe;

static size_t allocations = 0;

static void* counted(void* memory) {
    ++allocations;
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

// Not inlined: the compiler would take malloc and delete, or new and free, for a mistake.
[[gnu::noinline]] void* operator new(size_t size) { return counted(std::malloc(size)); }
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
    const auto unit = static_cast<size_t>(alignment);
    return counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

using Random = std::mt19937;

void expect(bool holds, const char* what, std::string_view text) {
    if (holds) return;
    std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(text.size()), text.data());
    std::exit(1);
}

size_t below(Random& random, size_t limit) { return random() % limit; }

std::string utf8(uint32_t code_point) {
    auto tail = [&](int shift) { return static_cast<char>(0x80 | (code_point >> shift & 0x3F)); };
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
    if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
    return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

std::string random_text(Random& random) {
    static const char* kParts[] = {"a",   "b",      "ab", "Z",  "'s", "'LL", "'", " ",      "  ",
                                   "\n",  "\r\n",   "\t", "7",  "42", "90",  "!", "?",      "<|a|>",
                                   "<|a", "<|ab|>", "é",  "你", "好", "😀",  "½", "\u00a0", "\u3000"};
    std::string text;
    const size_t parts = below(random, 300);
    for (size_t i = 0; i < parts; ++i) {
        if (below(random, 8) == 0) {
            const auto code_point = static_cast<uint32_t>(below(random, 0x110000));
            if (code_point < 0xD800 || code_point > 0xDFFF) text += utf8(code_point);
        } else if (below(random, 40) == 0) {
            text.append(below(random, 200), below(random, 2) ? 'a' : 'b');  // words that are merged by the queue
        } else {
            text += kParts[below(random, std::size(kParts))];
        }
    }
    return text;
}

// All bytes, tokens that random rules make of them, and two added tokens.
struct Vocabulary {
    std::vector<std::string> tokens;
    Recipe recipe;
};

Vocabulary random_vocabulary(Random& random, Pattern pattern) {
    static constexpr std::string_view kOften = "ab Z's!7\n\xc3\xa9\xe4\xbd\xa0";
    Vocabulary made{{}, {pattern, false, {}, {}, {}, {}, {}}};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        made.tokens.push_back({static_cast<char>(byte)});
        made.recipe.bytes[byte] = byte;
    }
    for (uint32_t rank = 0; rank < 300; ++rank) {
        auto pick = [&]() -> uint32_t {
            const size_t made_tokens = made.tokens.size() - 256;
            if (made_tokens == 0 || below(random, 2)) return static_cast<uint8_t>(kOften[below(random, kOften.size())]);
            return static_cast<uint32_t>(256 + below(random, made_tokens));
        };
        const uint32_t left = pick(), right = pick(), result = static_cast<uint32_t>(made.tokens.size());
        made.tokens.push_back(made.tokens[left] + made.tokens[right]);
        made.recipe.rules.push_back({left, right, {rank, result}});
    }
    for (uint32_t id = 0; id < made.tokens.size(); ++id) made.recipe.vocabulary.push_back({made.tokens[id], id});
    for (const char* content : {"<|a|>", "<|ab|>"}) {
        made.recipe.added.push_back({content, static_cast<uint32_t>(made.tokens.size()), false, false, false});
        made.tokens.push_back(content);
    }
    return made;
}

// Byte pair encoding as it is defined: the whole list is looked through for the best rule, again and again.
std::vector<uint32_t> plainly_merged(std::string_view word, const std::vector<MergeRule>& rules) {
    std::vector<uint32_t> ids;
    for (const char byte : word) ids.push_back(static_cast<uint8_t>(byte));
    while (true) {
        Merge best{kNone, kNone};
        size_t place = 0;
        for (size_t i = 0; i + 1 < ids.size(); ++i) {
            // The last of equal rules counts, as in the table.
            const auto rule = std::find_if(rules.rbegin(), rules.rend(), [&](const MergeRule& each) {
                return each.left == ids[i] && each.right == ids[i + 1];
            });
            if (rule == rules.rend() || rule->merge.rank >= best.rank) continue;
            best = rule->merge;
            place = i;
        }
        if (best.rank == kNone) return ids;
        ids[place] = best.token;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
}

void check_words(Random& random, const Encoder& encoder, const Recipe& recipe) {
    Workspace workspace;
    for (int i = 0; i < 60; ++i) {
        std::string word;
        const size_t size = 1 + below(random, i % 4 == 0 ? 200 : 30);
        while (word.size() < size) word += below(random, 2) ? "a" : "b";
        encoder.encode(word, workspace);
        expect(workspace.tokens == plainly_merged(word, recipe.rules), "a word is merged differently", word);
    }
}

void check(Random& random, Pattern pattern) {
    const Vocabulary vocabulary = random_vocabulary(random, pattern);
    const Decoder decoder(vocabulary.tokens, {});
    const Encoder best(vocabulary.recipe);
    const Encoder plain(vocabulary.recipe, {"plain", classify_plain});
    check_words(random, best, vocabulary.recipe);
    Workspace workspace, plain_workspace;
    std::vector<std::string> texts;
    for (int i = 0; i < 200; ++i) texts.push_back(random_text(random));
    for (int round = 0; round < 2; ++round) {
        for (const std::string& text : texts) {
            const auto exact = std::make_unique<char[]>(text.size());
            text.copy(exact.get(), text.size());
            const std::string_view view(exact.get(), text.size());
            const size_t before = allocations;
            best.encode(view, workspace);
            expect(round == 0 || allocations == before, "memory was allocated", text);
            plain.encode(view, plain_workspace);
            expect(workspace.tokens == plain_workspace.tokens, "bytes are classified differently", text);
            std::string decoded;
            for (const uint32_t id : workspace.tokens) decoder.append(id, false, decoded);
            expect(decoded == text, "the ids are another text", text);
        }
    }
}

}  // namespace

int main() {
    Random random(7);
    for (const Pattern pattern : {Pattern::kGpt2, Pattern::kGpt2Digits, Pattern::kLlama3, Pattern::kQwen2}) {
        for (int i = 0; i < 8; ++i) check(random, pattern);
    }
    std::printf("right, with %s\n", best_classifier().name);
}
