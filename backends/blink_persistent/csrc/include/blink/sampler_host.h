// The default sampler on a host: one row of logits to one token, from the row's SamplingRow.
//
// Order: bias, penalties, suppression of end tokens, grammar; log-probabilities are taken there. Then
// temperature, min_p, top_k, top_p. The draw walks the kept tokens in id order up to
// uniform_at(seed, position) of their mass, so it depends on nothing but the row.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "float_bits.h"
#include "provisioned.h"
#include "random.h"
#include "ring_layout.h"
#include "sampler_grammar.h"

// Vector units are chosen at load; ThreadSanitizer cannot run the resolvers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define BLINK_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BLINK_VECTOR_CLONES
#endif

namespace blink {

// exp(x) for x <= 0 within 2e-7 relative; 0 below -87. Written so that compilers vectorise it.
inline float exp_negative(float x) {
    const float clamped = x < -87.0f ? -87.0f : x;
    const float scaled = clamped * 1.44269504f;
    const int32_t whole = static_cast<int32_t>(scaled - 0.5f);
    const float r = clamped - static_cast<float>(whole) * 0.693359375f + static_cast<float>(whole) * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    const uint32_t power = static_cast<uint32_t>(whole + 127) << 23;
    return y * from_bits(x < -87.0f ? 0u : power);
}

// Largest logit; NaN where any logit is NaN or +inf.
BLINK_VECTOR_CLONES inline float max_logit(const float* logits, uint32_t count) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t bad = 0;
    for (uint32_t i = 0; i < count; ++i) {
        best = logits[i] > best ? logits[i] : best;
        bad |= !(logits[i] < std::numeric_limits<float>::infinity());
    }
    return bad != 0 ? std::numeric_limits<float>::quiet_NaN() : best;
}

// weights[i] = exp((logits[i] - best) * inverse_temperature); returns their sum.
BLINK_VECTOR_CLONES inline double exponentials(const float* logits, uint32_t count, float best,
                                               float inverse_temperature, float* weights) {
    constexpr uint32_t kRun = 512;  // float sums over short runs, doubles over the runs
    double total = 0.0;
    for (uint32_t start = 0; start < count; start += kRun) {
        const uint32_t stop = std::min(count, start + kRun);
        for (uint32_t i = start; i < stop; ++i) weights[i] = exp_negative((logits[i] - best) * inverse_temperature);
        float lanes[16] = {};
        uint32_t i = start;
        for (; i + 16 <= stop; i += 16)
            for (uint32_t lane = 0; lane < 16; ++lane) lanes[lane] += weights[i + lane];
        for (; i < stop; ++i) lanes[0] += weights[i];
        for (const float lane : lanes) total += static_cast<double>(lane);
    }
    return total;
}

// One thread as a block of one lane.
struct OneLane {
    static constexpr uint32_t lane() { return 0; }
    static constexpr uint32_t lanes() { return 1; }
    static void sync() {}
    static uint64_t max(uint64_t value) { return value; }
};

class HostSampler {
  public:
    HostSampler(uint32_t vocabulary_size, std::vector<int32_t> eos_token_ids)
        : vocabulary_size_(vocabulary_size), eos_(std::move(eos_token_ids)), adjusted_(vocabulary_size),
          weights_(vocabulary_size + eos_.size()) {}

    // Samples rows [0, count) of `buffers` from logits [count, stride] and writes their outputs.
    void sample(const PhaseBuffers& buffers, uint32_t count, const float* logits, uint64_t stride) {
        for (uint32_t i = 0; i < count; ++i)
            if ((buffers.sampling[i].flags & kSamplingActive) != 0) sample_row(buffers, i, logits + i * stride);
    }

  private:
    void sample_row(const PhaseBuffers& buffers, uint32_t index, const float* raw) {
        SamplingRow& row = buffers.sampling[index];
        const float* logits = adjust(row, raw);
        const float best = max_logit(logits, vocabulary_size_);
        if (!std::isfinite(best)) {
            buffers.output_tokens[index] = -1;
            return;
        }
        const int32_t token = row.temperature == 0.0f ? argmax(logits, best) : draw(row, logits, best);
        buffers.output_tokens[index] = token;
        if (row.logprobs != 0) write_logprobs(buffers, index, logits, best, token);
    }

    int32_t argmax(const float* logits, float best) const {
        return static_cast<int32_t>(std::find(logits, logits + vocabulary_size_, best) - logits);
    }

    // Logits with bias, penalties, suppressed end tokens and what a grammar forbids; the input
    // itself where none applies.
    const float* adjust(SamplingRow& row, const float* raw) {
        const bool penalties =
            row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
        const bool constrained = row.grammar_words != 0;
        const bool suppress = (row.flags & kSamplingSuppressEnd) != 0 && !constrained;
        if (!penalties && !suppress && !constrained && row.bias_count == 0) return raw;
        std::copy_n(raw, vocabulary_size_, adjusted_.begin());
        const auto* bias = reinterpret_cast<const int32_t*>(row.bias);
        for (uint32_t i = 0; i < row.bias_count; ++i)
            if (inside(bias[2 * i])) adjusted_[bias[2 * i]] += reinterpret_cast<const float*>(bias)[2 * i + 1];
        if (penalties) penalize(row);
        if (suppress) {
            const auto* stop = reinterpret_cast<const int32_t*>(row.stop);
            for (uint32_t i = 0; i < row.stop_count; ++i) forbid(stop[i]);
            if ((row.flags & kSamplingKeepEos) == 0)
                for (const int32_t id : eos_) forbid(id);
        }
        if (constrained) {
            OneLane lane;
            GrammarMask<OneLane>(lane, eos_.data(), static_cast<uint32_t>(eos_.size()), vocabulary_size_, row)
                .apply(adjusted_.data(), weights_.data());
        }
        return adjusted_.data();
    }

    // Repetition over prompt and output (CTRL, arXiv 1909.05858); presence and frequency over
    // output. Counts are taken from the tokens themselves, so a resumed request has them too.
    void penalize(const SamplingRow& row) {
        const auto* prompt = reinterpret_cast<const int32_t*>(row.prompt);
        const auto* output = reinterpret_cast<const int32_t*>(row.output);
        seen_.assign(output, output + row.output_length);
        std::sort(seen_.begin(), seen_.end());
        for (auto at = seen_.begin(); at != seen_.end();) {
            const auto next = std::upper_bound(at, seen_.end(), *at);
            if (inside(*at))
                adjusted_[*at] -= row.presence_penalty + row.frequency_penalty * static_cast<float>(next - at);
            at = next;
        }
        if (row.repetition_penalty == 1.0f) return;
        seen_.insert(seen_.end(), prompt, prompt + row.prompt_length);
        std::sort(seen_.begin(), seen_.end());
        seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
        for (const int32_t id : seen_) {
            if (!inside(id)) continue;
            float& logit = adjusted_[id];
            logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
        }
    }

    int32_t draw(const SamplingRow& row, const float* logits, float best) {
        // A reciprocal of infinity would turn the best logit's zero distance into NaN.
        const float inverse = std::min(1.0f / row.temperature, std::numeric_limits<float>::max());
        double mass = exponentials(logits, vocabulary_size_, best, inverse, weights_.data());
        const float uniform = uniform_at(row.seed, row.position);
        const bool filtered = row.min_p > 0.0f || row.top_k > 0 || row.top_p < 1.0f;
        if (!filtered) {
            candidates_.resize(vocabulary_size_);
            std::iota(candidates_.begin(), candidates_.end(), 0);
        } else {
            mass = filter(row, mass);
        }
        double below = 0.0;
        int32_t last = argmax(logits, best);
        for (const int32_t id : candidates_) {
            if (weights_[id] == 0.0f) continue;
            below += static_cast<double>(weights_[id]);
            last = id;
            if (below > static_cast<double>(uniform) * mass) break;
        }
        return last;
    }

    // Leaves in candidates_, in id order, the tokens that min_p, top_k and top_p keep, best first
    // and lower ids first among equals; returns their mass.
    double filter(const SamplingRow& row, double total) {
        const uint32_t wanted = row.top_k > 0 ? std::min<uint32_t>(row.top_k, vocabulary_size_) : vocabulary_size_;
        double kept = 0.0;
        // Few tokens hold nearly all mass: sort those above a bar and lower it while they do not do.
        for (float bar = 1e-3f;; bar *= 1e-3f) {
            const bool all = row.min_p > 0.0f || bar < 1e-12f;
            const float floor = all ? row.min_p : bar;
            candidates_.clear();
            for (uint32_t i = 0; i < vocabulary_size_; ++i)
                if (weights_[i] >= floor) candidates_.push_back(static_cast<int32_t>(i));
            if (!all && row.top_k > 0 && candidates_.size() < wanted) continue;
            std::sort(candidates_.begin(), candidates_.end(), [this](int32_t a, int32_t b) {
                return weights_[a] > weights_[b] || (weights_[a] == weights_[b] && a < b);
            });
            if (candidates_.size() > wanted) candidates_.resize(wanted);
            const bool bounded = row.top_k > 0 || all;  // what lies below the bar is not wanted
            const double mass = bounded ? sum_candidates() : total;
            size_t size = 0;
            kept = 0.0;
            while (size < candidates_.size() && (size == 0 || kept < static_cast<double>(row.top_p) * mass))
                kept += static_cast<double>(weights_[candidates_[size++]]);
            const bool enough = size < candidates_.size() || kept >= static_cast<double>(row.top_p) * mass;
            if (!all && !enough) continue;
            candidates_.resize(size);
            break;
        }
        std::sort(candidates_.begin(), candidates_.end());
        return kept;
    }

    double sum_candidates() const {
        double sum = 0.0;
        for (const int32_t id : candidates_) sum += static_cast<double>(weights_[id]);
        return sum;
    }

    void write_logprobs(const PhaseBuffers& buffers, uint32_t index, const float* logits, float best, int32_t token) {
        const double total = exponentials(logits, vocabulary_size_, best, 1.0f, weights_.data());
        const float log_total = best + static_cast<float>(std::log(total));
        buffers.output_logprobs[index] = logits[token] - log_total;
        const uint32_t top = std::min(buffers.sampling[index].logprobs - 1, vocabulary_size_);
        if (top == 0) return;
        candidates_.resize(vocabulary_size_);
        std::iota(candidates_.begin(), candidates_.end(), 0);
        std::partial_sort(
            candidates_.begin(), candidates_.begin() + top, candidates_.end(),
            [logits](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
        for (uint32_t k = 0; k < top; ++k) {
            buffers.output_top_ids[index * kMaxTopLogprobs + k] = candidates_[k];
            buffers.output_top_logprobs[index * kMaxTopLogprobs + k] = logits[candidates_[k]] - log_total;
        }
    }

    bool inside(int32_t id) const { return id >= 0 && static_cast<uint32_t>(id) < vocabulary_size_; }
    void forbid(int32_t id) {
        if (inside(id)) adjusted_[id] = -std::numeric_limits<float>::infinity();
    }

    uint32_t vocabulary_size_;
    std::vector<int32_t> eos_;
    std::vector<float> adjusted_;
    std::vector<float> weights_;
    std::vector<int32_t> candidates_;
    std::vector<int32_t> seen_;
};

}  // namespace blink
