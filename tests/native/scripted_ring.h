// A ring in memory of its own and a scripted engine's tables, for the native tests.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "blink/host_scheduler.h"
#include "blink/ring_host.h"
#include "blink/scripted.h"

namespace blink {

// Ends the program: these programs run under a test that shows their output.
#define CHECK(condition, ...)                                                    \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                   \
            std::fputc('\n', stderr);                                            \
            std::exit(1);                                                        \
        }                                                                        \
    } while (false)

constexpr uint32_t kContext = 96;
constexpr ScriptedRule kRule{101, 2, 40};

// Zeroed, page-aligned memory with an empty ring: `kContext` words of everything for each slot.
class ScriptedRing {
  public:
    explicit ScriptedRing(uint32_t ranges) {
        const uint64_t words = kRangeGranule * kContext;
        const RingShape shape{ranges, kRangeGranule, words, words, words};
        const uint64_t bytes = describe_ring(shape, 1).total_bytes;
        memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, bytes)));
        std::memset(memory_.get(), 0, bytes);
        create_ring(memory_.get(), bytes, shape, 1);
        view = attach_ring(memory_.get(), bytes);
    }

    void* memory() { return memory_.get(); }

    // Writes a record and its prompt, then the ticket that announces them.
    void submit(uint32_t slot, uint32_t ticket, const std::vector<int32_t>& prompt, uint32_t max_tokens) {
        const uint32_t place = slot % kRangeGranule * kContext;
        std::copy(prompt.begin(), prompt.end(), view.prompts(view.range_of(slot)) + place);
        RequestRecord record{};
        record.prompt_offset = record.output_offset = place;
        record.prompt_length = static_cast<uint32_t>(prompt.size());
        record.max_tokens = max_tokens;
        record.top_p = record.repetition_penalty = 1.0f;
        view.records[slot] = record;
        HostPort::store_release(&view.words[slot].submit, ticket);
    }

    // The status, if all of it is this ticket's.
    std::optional<StatusWord> accepted(uint32_t slot, uint32_t ticket) {
        const StatusSnapshot shown = read_status(&view.status[slot]);
        const StatusWord word = unpack_status(shown.word);
        const bool mine = shown.ticket_and_epoch == (ticket | 1ull << 32) && word.ticket_byte == (ticket & 0xff);
        return mine ? std::optional(word) : std::nullopt;
    }

    const int32_t* output(uint32_t slot) const {
        return view.outputs(view.range_of(slot)) + slot % kRangeGranule * kContext;
    }

    RingView view{};

  private:
    struct Free {
        void operator()(uint8_t* memory) const { std::free(memory); }
    };
    std::unique_ptr<uint8_t, Free> memory_;
};

// What the native programs run on: rows that are their own KV memory, paged rows, and these with mixed steps.
enum class Rows { kFixed, kMovable, kMixed };

// The program's one argument, or none where it is wrong.
inline std::optional<Rows> rows_asked(int argc, char** argv) {
    const std::string_view asked = argc == 2 ? argv[1] : "";
    if (asked == "fixed") return Rows::kFixed;
    if (asked == "movable") return Rows::kMovable;
    if (asked == "mixed") return Rows::kMixed;
    std::fprintf(stderr, "usage: %s fixed|movable|mixed\n", argv[0]);
    return std::nullopt;
}

constexpr uint32_t kMixedRows = 4;
constexpr uint16_t kMixedGraph = 2;

// Tables with one graph a phase, the largest: 5 rows; 2 sequences of 32 tokens together, 16 of them
// beside rows. Mixed steps are of up to 4 rows: with more, decode and prefill take turns.
inline void make_tables(HostEngine& engine, Rows rows) {
    const bool rows_movable = rows != Rows::kFixed;
    EngineTables& t = engine.tables;
    t.max_rows = 5;
    t.max_sequences = 2;
    t.max_prefill_tokens = 32;
    t.token_granularity = 32;
    t.context_length = kContext;
    t.vocabulary_size = kRule.vocabulary_size;
    t.block_size = rows_movable ? 4 : kContext;
    t.block_count = rows_movable ? 28 : 0;
    t.max_blocks = kContext / t.block_size;
    t.rows_movable = rows_movable;
    engine.graphs = {{Phase::kDecode, t.max_rows, t.max_rows},
                     {Phase::kPrefill, t.max_sequences, t.max_prefill_tokens}};
    engine.decode_lookup.assign(t.max_rows, 0);
    engine.prefill_lookup.assign(t.max_sequences, 1);
    if (rows == Rows::kMixed) {
        t.mixed_sequences = 2;
        t.max_mixed_tokens = 16;
        engine.graphs.push_back({Phase::kMixed, t.mixed_sequences, t.max_mixed_tokens, kMixedRows});
        engine.mixed_lookup.assign(kMixedRows, kMixedGraph);
        engine.mixed_lookup.resize(t.max_rows, kNoGraph);
    }
    engine.eos_token_ids = {kRule.eos_token_id};
    engine.finish();
}

// A scheduler's private memory, for schedulers that no HostScheduler owns; traced.
class StateMemory {
  public:
    StateMemory(uint32_t slots, const EngineTables& engine)
        : lines_(lay_out_state(nullptr, slots, engine, kTraceEvents) / sizeof(StateLine) + 1),
          state(reinterpret_cast<SchedulerState*>(lines_.data())) {
        lay_out_state(lines_.front().bytes, slots, engine, kTraceEvents);
        initialize_state(*state, engine);
    }

  private:
    static constexpr uint32_t kTraceEvents = 1 << 16;
    std::vector<StateLine> lines_;

  public:
    SchedulerState* const state;
};

inline std::vector<int32_t> random_prompt(std::mt19937& random) {
    std::vector<int32_t> prompt(1 + random() % 30);
    for (int32_t& token : prompt) token = static_cast<int32_t>(3 + random() % 98);
    return prompt;
}

// The tokens that a request gets by the plain rule.
inline std::vector<int32_t> scripted_answer(const std::vector<int32_t>& prompt, uint32_t max_tokens) {
    uint64_t hash = 0;
    for (const int32_t token : prompt) hash = scripted_mix(hash, token);
    std::vector<int32_t> tokens;
    while (tokens.size() < max_tokens && (tokens.empty() || tokens.back() != kRule.eos_token_id)) {
        tokens.push_back(scripted_token(kRule, hash, false));
        hash = scripted_mix(hash, tokens.back());
    }
    return tokens;
}

}  // namespace blink
