// The scripted engine's rule: which token follows a sequence, and where its KV memory is.
//
// Its KV memory holds the tokens themselves, in blocks reached through the block tables, and the
// next token is a hash of everything it reads there. So any mistake in blocks, rows, positions or
// lengths changes the output, and the plain reference `scripted_token` shows it.
#pragma once

#include "provisioned.h"

namespace blink {

struct ScriptedRule {
    uint32_t vocabulary_size;
    int32_t eos_token_id;  // never produced by the rule itself unless eos_every > 0
    uint32_t eos_every;    // on average every so many tokens is end-of-sequence; 0 = never
};

constexpr uint64_t kScriptedSeed = 0x9E3779B97F4A7C15ull;
constexpr uint32_t kScriptedTopEntries = 20;
constexpr int32_t kScriptedDecoded = 1 << 30;  // marks an entry that a decode step computed

BLINK_HD inline uint64_t scripted_mix(uint64_t hash, int32_t token) {
    hash ^= static_cast<uint32_t>(token) + kScriptedSeed + (hash << 6) + (hash >> 2);
    return hash * 0xD6E8FEB86659FD93ull;
}

// The token that follows a sequence with this hash.
BLINK_HD inline int32_t scripted_token(const ScriptedRule& rule, uint64_t hash, bool suppress_end) {
    const uint64_t value = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull >> 20;
    if (rule.eos_every > 0 && value % rule.eos_every == 0 && !suppress_end) return rule.eos_token_id;
    const auto token = static_cast<int32_t>(value / 7 % rule.vocabulary_size);
    if (token != rule.eos_token_id) return token;
    return static_cast<int32_t>((token + 1) % static_cast<int32_t>(rule.vocabulary_size));
}

// Tokens that the engine's KV memory holds.
BLINK_HD inline uint64_t scripted_kv_tokens(const EngineTables& engine) {
    return static_cast<uint64_t>(engine.rows_movable != 0 ? engine.block_count : engine.max_rows) * engine.block_size;
}

// Where the KV memory holds position `at` of sequence i of a step.
BLINK_HD inline uint64_t scripted_entry(const EngineTables& engine, Phase phase, uint32_t i, uint32_t at) {
    const PhaseBuffers& b = engine.buffers[static_cast<uint32_t>(phase)];
    const uint32_t block =
        engine.rows_movable != 0
            ? static_cast<uint32_t>(
                  b.block_tables[static_cast<uint64_t>(i) * engine.max_blocks + at / engine.block_size])
            : static_cast<uint32_t>(phase == Phase::kDecode ? static_cast<int32_t>(i) : b.rows[i]);
    return static_cast<uint64_t>(block) * engine.block_size + at % engine.block_size;
}

// Shows the chosen token of sequence i, and entry k of its list of best tokens.
BLINK_HD inline void scripted_show(const PhaseBuffers& b, uint32_t i, int32_t token, bool poisoned) {
    b.output_tokens[i] = poisoned ? -1 : token;
    b.output_logprobs[i] = -static_cast<float>(token);
}

BLINK_HD inline void scripted_show_entry(const PhaseBuffers& b, const ScriptedRule& rule, uint32_t i, int32_t token,
                                         uint32_t k) {
    const uint64_t at = static_cast<uint64_t>(i) * kScriptedTopEntries + k;
    b.output_top_ids[at] = static_cast<int32_t>((static_cast<uint32_t>(token) + k) % rule.vocabulary_size);
    b.output_top_logprobs[at] = -static_cast<float>(token) - static_cast<float>(k);
}

}  // namespace blink
