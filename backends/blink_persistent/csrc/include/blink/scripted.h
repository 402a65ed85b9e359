// The scripted engine on the host: deterministic tokens from a rule, for the scheduler's own tests.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "scripted_rule.h"

namespace blink {

class ScriptedEngine {
  public:
    ScriptedEngine(const EngineTables& tables, const ScriptedRule& rule)
        : tables_(tables), rule_(rule), kv_(scripted_kv_tokens(tables), -1) {}

    std::chrono::microseconds step_time{0};
    int32_t poison_token = -1;  // a sequence whose last token this is gives NaN logits
    // Like a real engine's rounding: entries computed by decode differ from those by prefill.
    bool tells_phases = false;

    // Runs one launched graph on its step buffers.
    void step(const GraphKey& key) {
        if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
        for (uint32_t part = first_part(key.phase); part < end_part(key.phase); ++part)
            step_part(part_of(key, static_cast<Phase>(part)));
    }

  private:
    void step_part(const GraphKey& key) {
        const PhaseBuffers& b = tables_.buffers[static_cast<uint32_t>(key.phase)];
        for (uint32_t i = 0; i < key.sequences; ++i) {
            if (b.lengths[i] == 0) continue;
            const int32_t first = key.phase == Phase::kDecode ? static_cast<int32_t>(i) : b.cu_seqlens[i];
            const int32_t mark = tells_phases && key.phase == Phase::kDecode ? kScriptedDecoded : 0;
            int32_t last = -1;
            for (int32_t at = b.start_positions[i]; at < b.lengths[i]; ++at) {
                last = b.token_ids[first + at - b.start_positions[i]];
                kv_[entry(key.phase, i, at)] = last | mark;
            }
            if ((b.sampling[i].flags & kSamplingActive) != 0) choose(key.phase, i, last);
        }
    }

    void choose(Phase phase, uint32_t i, int32_t last) {
        const PhaseBuffers& b = tables_.buffers[static_cast<uint32_t>(phase)];
        uint64_t hash = 0;
        for (int32_t at = 0; at < b.lengths[i]; ++at) hash = scripted_mix(hash, kv_[entry(phase, i, at)]);
        const bool suppress = (b.sampling[i].flags & kSamplingSuppressEnd) != 0;
        const int32_t token = scripted_token(rule_, hash, suppress);
        scripted_show(b, i, token, last == poison_token);
        for (uint32_t k = 0; k < kScriptedTopEntries; ++k) scripted_show_entry(b, rule_, i, token, k);
    }

    size_t entry(Phase phase, uint32_t i, int32_t at) const {
        return scripted_entry(tables_, phase, i, static_cast<uint32_t>(at));
    }

    EngineTables tables_;
    ScriptedRule rule_;
    std::vector<int32_t> kv_;
};

}  // namespace blink
