// Random grammars for tests of samplers.
#pragma once

#include <chrono>
#include <random>
#include <vector>

#include "blink/grammar_builder.h"

namespace blink {

// Token i is spelled by the digits of i in base 7, so that tokens share beginnings; ends by nothing.
inline TokenTrie number_trie(uint32_t vocabulary) {
    std::vector<uint8_t> bytes;
    std::vector<uint64_t> offsets{0};
    for (uint32_t id = 0; id < vocabulary; ++id) {
        for (uint32_t rest = id == 2 || id == 5 ? 0 : id; rest > 0; rest /= 7) bytes.push_back(rest % 7);
        offsets.push_back(bytes.size());
    }
    return TokenTrie(bytes.data(), offsets.data(), vocabulary);
}

// A table of a random automaton over 7 bytes; `output` becomes a text of its, all or in part.
inline std::vector<uint32_t> random_grammar(std::mt19937& random, uint32_t vocabulary, std::vector<int32_t>& output) {
    static const TokenTrie tries[] = {number_trie(7), number_trie(1003), number_trie(20000)};
    const TokenTrie& trie = tries[vocabulary == 7 ? 0 : vocabulary == 1003 ? 1 : 2];
    const uint32_t states = 1 + random() % 12, classes = 8, refused = 1 + random() % 4;
    std::vector<uint8_t> class_of(256, 7), accepting(states, 0);
    for (uint8_t byte = 0; byte < 7; ++byte) class_of[byte] = byte;
    std::vector<int32_t> next(states * classes, -1);
    for (uint32_t state = 0; state < states; ++state) {
        accepting[state] = random() % 3 == 0;
        for (uint32_t c = 0; c < 7; ++c)
            if (random() % refused != 0) next[state * classes + c] = static_cast<int32_t>(random() % states);
    }
    accepting[states - 1] = 1;
    std::vector<uint32_t> table;
    try {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
        table =
            GrammarBuilder(trie, {class_of.data(), next.data(), accepting.data(), states, classes}, 1u << 28, deadline)
                .build();
    } catch (const GrammarUnwritable&) {
        return {};
    }
    const GrammarTable view(reinterpret_cast<uint64_t>(table.data()), table.size(), vocabulary);
    uint32_t state = 0;
    output.clear();
    for (uint32_t left = random() % 20; left > 0; --left) {
        const GrammarRow row = view.row(state);
        for (uint32_t tries_left = 50; tries_left > 0; --tries_left) {
            const uint32_t token = random() % vocabulary;
            uint32_t found = view.unlisted_class(row, token);
            for (uint32_t i = 0; i < row.count; ++i)
                if (row.listed[2 * i] == token) found = row.listed[2 * i + 1];
            if (found == kNoGrammarClass) continue;
            output.push_back(static_cast<int32_t>(token));
            state = view.target(row, found);
            break;
        }
    }
    return table;
}

}  // namespace blink
