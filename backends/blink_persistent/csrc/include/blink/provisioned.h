// What an engine gives to the scheduler: shapes, step buffers, lookup tables, completion words.
//
// The scheduler fills a phase's inputs, launches one graph, waits for `completion` to reach the
// number of launches that used them, and reads the outputs. It knows nothing else about a model.
#pragma once

#include "types.h"

namespace blink {

// A mixed step is a decode step and a prefill in one graph. It has no step buffers of its own: it
// reads the inputs, writes the outputs and raises the completion of both others.
enum class Phase : uint32_t { kDecode = 0, kPrefill = 1, kMixed = 2 };
constexpr uint32_t kPhases = 2;  // that have step buffers

// The phases whose step buffers a graph uses: those in [first_part(phase), end_part(phase)).
BLINK_HD constexpr uint32_t first_part(Phase phase) { return phase == Phase::kPrefill ? 1 : 0; }
BLINK_HD constexpr uint32_t end_part(Phase phase) { return phase == Phase::kDecode ? 1 : 2; }
BLINK_HD constexpr bool uses(Phase phase, Phase part) { return phase == part || phase == Phase::kMixed; }

// How one token is chosen: filled by the scheduler, read by samplers on host and device alike.
// Addresses are valid where the engine runs. `position` counts the tokens before the one to be
// chosen; the random number depends on (seed, position) only.
struct SamplingRow {
    uint64_t seed;
    uint64_t prompt;   // int32_t[prompt_length]
    uint64_t output;   // int32_t[output_length], tokens generated so far
    uint64_t bias;     // {int32_t id, float value}[bias_count]
    uint64_t stop;     // int32_t[stop_count]
    uint64_t grammar;  // a table of grammar_table.h
    uint32_t prompt_length;
    uint32_t output_length;
    uint32_t bias_count;
    uint32_t stop_count;
    uint32_t position;
    uint32_t logprobs;  // as in the request record
    int32_t top_k;
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t flags;          // SamplingFlags
    uint32_t grammar_words;  // of the table; 0: any text
    // The sampler's own: the grammar's state after `grammar_length` tokens of the output. Both are 0
    // when the row is filled, so that the state of a resumed request is found from its tokens.
    uint32_t grammar_state;
    uint32_t grammar_length;
    uint32_t kept;  // a sampler plugin's own: lasts from one token of a request to the next, 0 at first
};
static_assert(sizeof(SamplingRow) == 120, "sampling rows are read by kernels compiled apart");

enum SamplingFlags : uint32_t {
    kSamplingActive = 1u << 0,       // a row without it is skipped
    kSamplingSuppressEnd = 1u << 1,  // min_tokens not reached: no end-of-sequence or stop id
    kSamplingKeepEos = 1u << 2,      // ignore_eos: end-of-sequence ids are tokens like others
};

// Inputs and outputs of one phase, at fixed addresses. n = max_rows for decode (one token a row),
// max_sequences for prefill (tokens packed, sequence i in [cu_seqlens[i], cu_seqlens[i + 1])).
// An inactive row has length 0, the null block, and no kSamplingActive.
struct PhaseBuffers {
    int32_t* token_ids;        // [max_rows] | [max_prefill_tokens]
    int32_t* start_positions;  // [n] KV entries before the step
    int32_t* lengths;          // [n] KV entries after the step
    int32_t* rows;             // [n] row of each sequence (decode: 0, 1, 2, ...)
    int32_t* cu_seqlens;       // [n + 1]
    int32_t* block_tables;     // [n, max_blocks]
    SamplingRow* sampling;     // [n]
    int32_t* output_tokens;    // [n] -1: the logits were not finite
    float* output_logprobs;    // [n] the chosen token's
    int32_t* output_top_ids;   // [n, kMaxTopLogprobs]
    float* output_top_logprobs;
    uint32_t* completion;  // launches that use these buffers and have ended, written last
    uint32_t* error;       // 0, or why the launch failed as a whole; written before completion
};

struct GraphKey {
    Phase phase;
    uint32_t sequences;  // decode: rows
    uint32_t tokens;     // decode: rows
    uint32_t rows = 0;   // mixed: rows of its decode step, beside sequences and tokens of its prefill
};

// What a graph does in the step buffers of `part`, which it uses: a key of that phase.
BLINK_HD constexpr GraphKey part_of(const GraphKey& key, Phase part) {
    const bool rows = key.phase == Phase::kMixed && part == Phase::kDecode;
    return rows ? GraphKey{part, key.rows, key.rows} : GraphKey{part, key.sequences, key.tokens};
}

constexpr uint16_t kNoGraph = 0xffff;  // in mixed_lookup: no graph holds the step

// Everything about an engine that does not change while it is in service.
struct EngineTables {
    PhaseBuffers buffers[kPhases];
    const GraphKey* graphs;  // [graph_count]
    // These name only graphs that can be launched; entries may come to name smaller ones in service. What
    // an entry named is launched until the step after, at most; an idle pass, a park or a stop ends that too.
    const uint16_t* decode_lookup;   // [max_rows]: rows - 1 -> graph
    const uint16_t* prefill_lookup;  // [max_sequences, ceil(max_prefill_tokens / token_granularity)]
    const uint16_t* mixed_lookup;    // [max_rows, ceil(max_mixed_tokens / token_granularity)], or kNoGraph
    const int32_t* eos_token_ids;    // [eos_count]
    uint32_t graph_count;
    uint32_t eos_count;
    uint32_t max_rows;
    uint32_t max_sequences;
    uint32_t max_prefill_tokens;
    uint32_t token_granularity;
    uint32_t prefill_chunk;     // prompt tokens of a step for which decoding rows wait
    uint32_t mixed_sequences;   // of every mixed key
    uint32_t max_mixed_tokens;  // prompt tokens of a mixed step; 0: there are no mixed keys
    uint32_t context_length;
    uint32_t vocabulary_size;
    uint32_t block_size;    // tokens; without movable rows the context length
    uint32_t block_count;   // block 0 is the null block; without movable rows unused
    uint32_t max_blocks;    // of one request
    uint32_t rows_movable;  // 0: a row is its own KV memory and a request keeps its row
    // 1: a resumed request computes its generated tokens anew by decode steps, as at first, so that
    // its logits stay bit-equal; 0: by prefill, which is faster and rounds otherwise.
    uint32_t deterministic;
};

}  // namespace blink
