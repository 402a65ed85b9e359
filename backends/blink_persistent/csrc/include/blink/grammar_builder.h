// Makes a grammar's table: a byte-level automaton applied to every token of a vocabulary.
//
// From each state that tokens can reach, the vocabulary's tree is walked once; what the automaton
// refuses is skipped with all that continues it. How a state sorts its tokens is what most states
// share, so rows are kept by their content.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "grammar_table.h"
#include "token_trie.h"

namespace blink {

// Reads the automaton of a caller: state 0 is the first; next[state * classes + class_of[byte]] is
// negative where the byte is refused.
struct ByteAutomaton {
    const uint8_t* class_of;   // [256]
    const int32_t* next;       // [states, classes]
    const uint8_t* accepting;  // [states]
    uint32_t states;
    uint32_t classes;
};

struct GrammarTooLarge : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct GrammarTooSlow : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct GrammarUnwritable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class GrammarBuilder {
  public:
    GrammarBuilder(const TokenTrie& trie, const ByteAutomaton& automaton, uint64_t most_words,
                   std::chrono::steady_clock::time_point deadline)
        : trie_(trie), automaton_(automaton), most_words_(most_words), deadline_(deadline),
          mask_words_((trie.vocabulary_size() + 31) / 32), byte_words_((trie.vocabulary_size() + 3) / 4),
          class_stamp_(automaton.states, 0), class_number_(automaton.states), dead_(automaton.states, 0) {}

    // The table. Throws GrammarTooLarge, GrammarTooSlow, and GrammarUnwritable where no sequence of
    // tokens spells any text of the automaton.
    std::vector<uint32_t> build() {
        do {
            walk_all();
        } while (bury_dead_ends());
        return assemble();
    }

  private:
    struct State {
        uint32_t automaton_state;
        uint32_t row;      // offset in pool_
        uint32_t targets;  // offset in pool_
        uint32_t target_count;
    };
    struct Key {
        uint64_t a, b;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        size_t operator()(const Key& key) const { return key.a; }
    };
    static constexpr uint32_t kUnseen = 0xffffffffu;

    // Breadth first over the states that tokens reach; numbers them as they are found.
    void walk_all() {
        pool_.assign(1, 0);  // offset 0 means no mask
        rows_.clear();
        masks_.clear();
        states_.clear();
        number_.assign(automaton_.states, kUnseen);
        find(0);
        for (uint32_t at = 0; at < states_.size(); ++at) {
            walk(states_[at].automaton_state);
            add_row(states_[at]);
            if (std::chrono::steady_clock::now() > deadline_) throw GrammarTooSlow("the tables take too long");
            if (words() > most_words_) throw GrammarTooLarge("the tables are too large");
        }
    }

    uint64_t words() const {
        return (sizeof(GrammarHeader) + states_.size() * sizeof(GrammarState)) / 4 + pool_.size();
    }

    uint32_t find(uint32_t automaton_state) {
        uint32_t& number = number_[automaton_state];
        if (number == kUnseen) {
            number = static_cast<uint32_t>(states_.size());
            states_.push_back({automaton_state, 0, 0, 0});
        }
        return number;
    }

    // Leaves in `tokens_` and `classes_` what the state allows, in the tree's order, and in
    // `targets_` the automaton's state behind each class, numbered as they are met.
    void walk(uint32_t from) {
        tokens_.clear();
        classes_.clear();
        targets_.clear();
        stamp_ += 1;
        path_.assign(1, static_cast<int32_t>(from));
        for (uint32_t i = 0; i < trie_.node_count();) {
            const TokenTrie::Node& node = trie_.node(i);
            const auto at = static_cast<uint64_t>(path_[node.depth]) * automaton_.classes;
            const int32_t to = automaton_.next[at + automaton_.class_of[node.byte]];
            if (to < 0 || dead_[to] != 0) {
                i = node.end;
                continue;
            }
            if (path_.size() < node.depth + 2u) path_.resize(node.depth + 2u);
            path_[node.depth + 1u] = to;
            for (uint32_t place = node.first; place < trie_.node(i + 1).first; ++place) {
                tokens_.push_back(trie_.tokens()[place]);
                classes_.push_back(class_of_target(static_cast<uint32_t>(to)));
            }
            i += 1;
        }
    }

    uint32_t class_of_target(uint32_t to) {
        if (class_stamp_[to] != stamp_) {
            class_stamp_[to] = stamp_;
            class_number_[to] = static_cast<uint32_t>(targets_.size());
            targets_.push_back(to);
        }
        return class_number_[to];
    }

    void add_row(State& state) {
        const uint32_t place = static_cast<uint32_t>(&state - states_.data());
        const uint32_t first = largest_class();
        const auto [known, is_new] = rows_.try_emplace(key_of_walk(), 0);
        if (is_new) known->second = write_row(first);
        if (!targets_.empty()) std::swap(targets_[0], targets_[first]);
        const uint32_t at = static_cast<uint32_t>(pool_.size());
        for (const uint32_t to : targets_) pool_.push_back(find(to));  // may move `state`
        states_[place].row = known->second;
        states_[place].targets = at;
        states_[place].target_count = static_cast<uint32_t>(targets_.size());
    }

    uint32_t largest_class() {
        sizes_.assign(targets_.size(), 0);
        for (const uint32_t c : classes_) sizes_[c] += 1;
        return static_cast<uint32_t>(std::max_element(sizes_.begin(), sizes_.end()) - sizes_.begin());
    }

    Key key_of_walk() const {
        Key key{0x9E3779B97F4A7C15ull, tokens_.size()};
        for (size_t i = 0; i < tokens_.size(); ++i) {
            const uint64_t entry = static_cast<uint64_t>(classes_[i]) << 32 | tokens_[i];
            key.a = (key.a ^ entry) * 0xFF51AFD7ED558CCDull;
            key.a ^= key.a >> 32;
            key.b = (key.b + entry) * 0xC4CEB9FE1A85EC53ull;
            key.b ^= key.b >> 29;
        }
        return key;
    }

    // Class `first` becomes class 0; the shortest form of the row is written.
    uint32_t write_row(uint32_t first) {
        listed_.clear();
        for (size_t i = 0; i < tokens_.size(); ++i) {
            const uint32_t c = classes_[i] == first ? 0 : classes_[i] == 0 ? first : classes_[i];
            listed_.push_back(static_cast<uint64_t>(tokens_[i]) << 32 | c);
        }
        const uint64_t all = listed_.size(), of_first = sizes_.empty() ? 0 : sizes_[first];
        const uint64_t as_list = 2 * all, as_mask = mask_words_ + 2 * (all - of_first);
        const uint64_t as_bytes = sizes_.size() < kRefusedByte ? byte_words_ : kUnseen;
        uint32_t mask = 0, bytes = 0;
        if (as_bytes < as_list && as_bytes < as_mask) {
            bytes = write_bytes();
            listed_.clear();
        } else if (as_mask < as_list) {
            mask = write_mask(first);
            std::erase_if(listed_, [](uint64_t entry) { return static_cast<uint32_t>(entry) == 0; });
        }
        std::sort(listed_.begin(), listed_.end());
        const auto row = static_cast<uint32_t>(pool_.size());
        pool_.insert(pool_.end(), {mask, bytes, static_cast<uint32_t>(listed_.size())});
        for (const uint64_t entry : listed_)
            pool_.insert(pool_.end(), {static_cast<uint32_t>(entry >> 32), static_cast<uint32_t>(entry)});
        return row;
    }

    uint32_t write_bytes() {
        const auto at = static_cast<uint32_t>(pool_.size());
        pool_.insert(pool_.end(), byte_words_, 0xffffffffu);
        auto* bytes = reinterpret_cast<uint8_t*>(pool_.data() + at);
        for (const uint64_t entry : listed_) bytes[entry >> 32] = static_cast<uint8_t>(entry);
        return at;
    }

    uint32_t write_mask(uint32_t first) {
        std::vector<uint32_t> mask(mask_words_, 0);
        for (size_t i = 0; i < tokens_.size(); ++i)
            if (classes_[i] == first) mask[tokens_[i] / 32] |= 1u << tokens_[i] % 32;
        Key key{0x9E3779B97F4A7C15ull, mask_words_};
        for (const uint32_t word : mask) {
            key.a = (key.a ^ word) * 0xFF51AFD7ED558CCDull;
            key.a ^= key.a >> 32;
            key.b = (key.b + word) * 0xC4CEB9FE1A85EC53ull;
            key.b ^= key.b >> 29;
        }
        const auto [known, is_new] = masks_.try_emplace(key, static_cast<uint32_t>(pool_.size()));
        if (is_new) pool_.insert(pool_.end(), mask.begin(), mask.end());
        return known->second;
    }

    // A vocabulary may lack a byte, so that tokens lead to where nothing can be said: such states
    // are taken out. Whether there were any.
    bool bury_dead_ends() {
        std::vector<std::vector<uint32_t>> sources(states_.size());
        std::vector<uint8_t> lives(states_.size(), 0);
        std::vector<uint32_t> open;
        for (uint32_t at = 0; at < states_.size(); ++at) {
            for (uint32_t i = 0; i < states_[at].target_count; ++i)
                sources[pool_[states_[at].targets + i]].push_back(at);
            if (automaton_.accepting[states_[at].automaton_state] != 0) open.push_back(at);
        }
        for (const uint32_t at : open) lives[at] = 1;
        while (!open.empty()) {
            const uint32_t at = open.back();
            open.pop_back();
            for (const uint32_t source : sources[at])
                if (lives[source] == 0) {
                    lives[source] = 1;
                    open.push_back(source);
                }
        }
        if (lives[0] == 0) throw GrammarUnwritable("no sequence of tokens spells it");
        bool any = false;
        for (uint32_t at = 0; at < states_.size(); ++at)
            if (lives[at] == 0) {
                dead_[states_[at].automaton_state] = 1;
                any = true;
            }
        return any;
    }

    std::vector<uint32_t> assemble() const {
        const auto base = static_cast<uint32_t>(words() - pool_.size());
        std::vector<uint32_t> table(base);
        for (const uint32_t word : pool_) table.push_back(word);
        auto* states = reinterpret_cast<GrammarState*>(table.data() + sizeof(GrammarHeader) / 4);
        for (size_t i = 0; i < states_.size(); ++i) {
            const State& from = states_[i];
            states[i] = {base + from.row, base + from.targets, automaton_.accepting[from.automaton_state] != 0};
        }
        for (const auto& [key, row] : rows_)
            for (const uint32_t at : {base + row, base + row + 1})  // of the pool, now of the table
                if (table[at] != 0) table[at] += base;
        uint64_t hash = 0xcbf29ce484222325ull;
        for (size_t i = sizeof(GrammarHeader) / 4; i < table.size(); ++i) hash = (hash ^ table[i]) * 0x100000001b3ull;
        const GrammarHeader header{kGrammarMagic, static_cast<uint32_t>(table.size()),
                                   static_cast<uint32_t>(states_.size()), trie_.vocabulary_size(), hash};
        *reinterpret_cast<GrammarHeader*>(table.data()) = header;
        return table;
    }

    const TokenTrie& trie_;
    const ByteAutomaton automaton_;
    const uint64_t most_words_;
    const std::chrono::steady_clock::time_point deadline_;
    const uint32_t mask_words_;
    const uint32_t byte_words_;

    std::vector<State> states_;
    std::vector<uint32_t> number_;  // of a state of the automaton
    std::vector<uint32_t> pool_;    // masks, rows, targets
    std::unordered_map<Key, uint32_t, KeyHash> rows_;
    std::unordered_map<Key, uint32_t, KeyHash> masks_;

    std::vector<uint32_t> tokens_, classes_, targets_, sizes_;  // of the walk
    std::vector<uint64_t> listed_;
    std::vector<int32_t> path_;
    std::vector<uint32_t> class_stamp_, class_number_;
    std::vector<uint8_t> dead_;
    uint32_t stamp_ = 0;
};

}  // namespace blink
