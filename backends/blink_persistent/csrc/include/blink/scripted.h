// The scripted engine: deterministic tokens from a rule, for the scheduler's own tests.
//
// Its KV memory holds the tokens themselves, in blocks reached through the block tables, and the
// next token is a hash of everything it reads there. So any mistake in blocks, rows, positions or
// lengths changes the output, and the plain reference `scripted_token` shows it.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "provisioned.h"

namespace blink {

struct ScriptedRule {
    uint32_t vocabulary_size;
    int32_t eos_token_id;  // never produced by the rule itself unless eos_every > 0
    uint32_t eos_every;    // on average every so many tokens is end-of-sequence; 0 = never
};

constexpr uint64_t kScriptedSeed = 0x9E3779B97F4A7C15ull;

inline uint64_t scripted_mix(uint64_t hash, int32_t token) {
    hash ^= static_cast<uint32_t>(token) + kScriptedSeed + (hash << 6) + (hash >> 2);
    return hash * 0xD6E8FEB86659FD93ull;
}

// The token that follows a sequence with this hash.
inline int32_t scripted_token(const ScriptedRule& rule, uint64_t hash, bool suppress_end) {
    const uint64_t value = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull >> 20;
    if (rule.eos_every > 0 && value % rule.eos_every == 0 && !suppress_end) return rule.eos_token_id;
    const auto token = static_cast<int32_t>(value / 7 % rule.vocabulary_size);
    if (token != rule.eos_token_id) return token;
    return static_cast<int32_t>((token + 1) % static_cast<int32_t>(rule.vocabulary_size));
}

class ScriptedEngine {
  public:
    ScriptedEngine(const EngineTables& tables, const ScriptedRule& rule)
        : tables_(tables), rule_(rule),
          kv_(static_cast<size_t>(tables.rows_movable != 0 ? tables.block_count : tables.max_rows) * tables.block_size, -1) {}

    std::chrono::microseconds step_time{0};
    int32_t poison_token = -1;  // a sequence whose last token this is gives NaN logits

    // Runs one launched graph on its step buffers.
    void step(const GraphKey& key) {
        if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
        const PhaseBuffers& b = tables_.buffers[static_cast<uint32_t>(key.phase)];
        for (uint32_t i = 0; i < key.sequences; ++i) {
            const bool decode = key.phase == Phase::kDecode;
            if (b.lengths[i] == 0) continue;
            const int32_t first = decode ? static_cast<int32_t>(i) : b.cu_seqlens[i];
            int32_t last = -1;
            for (int32_t at = b.start_positions[i]; at < b.lengths[i]; ++at) {
                last = b.token_ids[first + at - b.start_positions[i]];
                kv_[entry(b, i, decode, at)] = last;
            }
            if ((b.sampling[i].flags & kSamplingActive) != 0) choose(b, i, decode, last);
        }
    }

  private:
    void choose(const PhaseBuffers& b, uint32_t i, bool decode, int32_t last) {
        uint64_t hash = 0;
        for (int32_t at = 0; at < b.lengths[i]; ++at) hash = scripted_mix(hash, kv_[entry(b, i, decode, at)]);
        const bool suppress = (b.sampling[i].flags & kSamplingSuppressEnd) != 0;
        const int32_t token = scripted_token(rule_, hash, suppress);
        b.output_tokens[i] = last == poison_token ? -1 : token;
        b.output_logprobs[i] = -static_cast<float>(token);
        for (uint32_t k = 0; k < kTopEntries; ++k) {
            b.output_top_ids[i * kTopEntries + k] = static_cast<int32_t>((token + k) % rule_.vocabulary_size);
            b.output_top_logprobs[i * kTopEntries + k] = -static_cast<float>(token) - static_cast<float>(k);
        }
    }

    size_t entry(const PhaseBuffers& b, uint32_t i, bool decode, int32_t at) const {
        const auto position = static_cast<uint32_t>(at);
        const uint32_t block = tables_.rows_movable != 0
                                   ? static_cast<uint32_t>(b.block_tables[i * tables_.max_blocks + position / tables_.block_size])
                                   : static_cast<uint32_t>(decode ? static_cast<int32_t>(i) : b.rows[i]);
        return static_cast<size_t>(block) * tables_.block_size + position % tables_.block_size;
    }

    static constexpr uint32_t kTopEntries = 20;
    EngineTables tables_;
    ScriptedRule rule_;
    std::vector<int32_t> kv_;
};

}  // namespace blink
