// Samples random rows with the thread block's sampler, its lanes being threads, and compares each
// with the host's sampler: tokens and ids must be equal, log-probabilities close.
//
// usage: sampler_lanes LANES BLOCKS WIDTH SEED ROWS; with a WIDTH of 32 the GPU's own lanes, as fibers,
// whatever LANES is
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "blink/sampler_block.h"
#include "blink/sampler_host.h"
#include "blink/thread_lanes.h"
#include "grammar_cases.h"
#include "sampler_fibers.h"

namespace blink {
namespace {

constexpr uint32_t kVocabularies[] = {7, 1003, 20000};

struct Outputs {
    int32_t token = -2;
    float logprob = 0;
    int32_t ids[kMaxTopLogprobs] = {};
    float logprobs[kMaxTopLogprobs] = {};
    uint32_t state = 0;  // of the grammar

    PhaseBuffers buffers(SamplingRow* row) {
        PhaseBuffers b{};
        b.sampling = row;
        b.output_tokens = &token;
        b.output_logprobs = &logprob;
        b.output_top_ids = ids;
        b.output_top_logprobs = logprobs;
        return b;
    }
};

struct Case {
    SamplingRow row{};
    std::vector<float> logits;
    std::vector<int32_t> prompt, output, stop, bias;
    std::vector<uint32_t> grammar;
};

class Cases {
  public:
    explicit Cases(uint32_t seed) : random_(seed) {}

    Case next(uint32_t vocabulary) {
        Case c;
        std::normal_distribution<float> normal(0.0f, pick({0.1f, 1.0f, 3.0f, 10.0f}));
        const bool tied = chance(3);
        for (uint32_t i = 0; i < vocabulary; ++i) {
            const float x = normal(random_);
            c.logits.push_back(tied ? std::round(2.0f * x) / 2.0f : x);
        }
        if (chance(20)) c.logits[random_() % vocabulary] = pick({NAN, INFINITY});
        if (chance(4)) c.logits[random_() % vocabulary] = -INFINITY;
        if (chance(40)) c.logits.assign(vocabulary, -INFINITY);
        ids(c.prompt, vocabulary, 40);
        ids(c.output, vocabulary, 30);
        ids(c.stop, vocabulary, 3);
        for (uint32_t left = chance(3) ? random_() % 4 : 0; left > 0; --left) {
            const float value = pick({-100.0f, -1.5f, 2.0f, 7.0f});
            c.bias.push_back(static_cast<int32_t>(random_() % vocabulary));
            c.bias.push_back(std::bit_cast<int32_t>(value));
        }
        SamplingRow& row = c.row;
        row.seed = (static_cast<uint64_t>(random_()) << 32) | random_();
        row.position = random_() % 5000;
        row.logprobs = chance(2) ? random_() % 22 : 0;
        row.top_k = static_cast<int32_t>(pick({0.0f, 0.0f, 1.0f, 5.0f, 40.0f, 3000.0f}));
        row.temperature = pick({0.0f, 1e-40f, 0.3f, 0.8f, 1.0f, 2.0f});
        row.top_p = pick({1.0f, 1.0f, 0.95f, 0.5f, 0.05f});
        row.min_p = pick({0.0f, 0.0f, 0.0f, 1e-5f, 0.1f});
        row.repetition_penalty = pick({1.0f, 1.0f, 1.3f, 0.8f});
        row.presence_penalty = pick({0.0f, 0.0f, 0.7f, -0.5f});
        row.frequency_penalty = pick({0.0f, 0.0f, 0.4f});
        if (chance(2)) c.grammar = random_grammar(random_, vocabulary, c.output);
        if (chance(30) && !c.grammar.empty()) c.grammar[random_() % c.grammar.size()] = random_();
        row.flags = kSamplingActive | (chance(3) ? kSamplingSuppressEnd : 0u) | (chance(2) ? kSamplingKeepEos : 0u);
        return c;
    }

  private:
    bool chance(uint32_t in) { return random_() % in == 0; }
    float pick(std::initializer_list<float> of) { return of.begin()[random_() % of.size()]; }
    // Twice in a while an id that is none.
    void ids(std::vector<int32_t>& into, uint32_t vocabulary, uint32_t most) {
        for (uint32_t left = random_() % (most + 1); left > 0; --left)
            into.push_back(chance(50) ? (chance(2) ? -1 : static_cast<int32_t>(vocabulary))
                                      : static_cast<int32_t>(random_() % vocabulary));
    }

    std::mt19937 random_;
};

void point(Case& c) {
    SamplingRow& row = c.row;
    row.prompt = reinterpret_cast<uint64_t>(c.prompt.data());
    row.output = reinterpret_cast<uint64_t>(c.output.data());
    row.stop = reinterpret_cast<uint64_t>(c.stop.data());
    row.bias = reinterpret_cast<uint64_t>(c.bias.data());
    row.prompt_length = static_cast<uint32_t>(c.prompt.size());
    row.output_length = static_cast<uint32_t>(c.output.size());
    row.stop_count = static_cast<uint32_t>(c.stop.size());
    row.bias_count = static_cast<uint32_t>(c.bias.size() / 2);
    row.grammar = reinterpret_cast<uint64_t>(c.grammar.data());
    row.grammar_words = static_cast<uint32_t>(c.grammar.size());
}

// Leaves the adjusted logits in `c`.
Outputs sample_by_lanes(Case& c, const EngineTables& engine, const LaneCut& cut) {
    point(c);
    Outputs found;
    const PhaseBuffers buffers = found.buffers(&c.row);
    std::vector<uint64_t> scratch(c.logits.size(), 0xABABABABABABABABull);
    const auto sample = [&]<class Block>(Block& block) {
        BlockSampler<Block>(block, engine, c.row, c.logits.data(), scratch.data()).sample(buffers, 0);
    };
    if (cut.width == 32)
        FiberPort::run(cut.blocks, static_cast<uint32_t>(c.row.seed), sample);
    else
        run_lanes(cut, sample);
    found.state = c.row.grammar_state;
    return found;
}

Outputs sample_on_host(Case c, uint32_t vocabulary, const std::vector<int32_t>& eos) {
    point(c);
    Outputs found;
    HostSampler(vocabulary, eos).sample(found.buffers(&c.row), 1, c.logits.data(), vocabulary);
    found.state = c.row.grammar_state;
    return found;
}

bool close(float a, float b) {
    return a == b || std::fabs(a - b) <= 2e-5f * std::max(1.0f, std::fabs(b)) || (std::isnan(a) && std::isnan(b));
}

// The host adds float masses, with errors of some 1e-7: where a draw from a large vocabulary falls
// on the edge between two tokens, both are right.
bool on_an_edge(const Case& c, int32_t a, int32_t b) {
    const SamplingRow& row = c.row;
    if (row.temperature == 0.0f || row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0.0f || a < 0 || b < 0)
        return false;
    const double best = *std::max_element(c.logits.begin(), c.logits.end());
    double total = 0.0, to_first = 0.0, before_second = 0.0;
    for (int32_t id = 0; id < static_cast<int32_t>(c.logits.size()); ++id) {
        const double weight = std::exp((c.logits[id] - best) / row.temperature);
        total += weight;
        if (id <= std::min(a, b)) to_first += weight;
        if (id < std::max(a, b)) before_second += weight;
    }
    const double uniform = uniform_at(row.seed, row.position);
    return std::fabs(to_first / total - uniform) < 1e-6 && std::fabs(before_second / total - uniform) < 1e-6;
}

bool agree(const Outputs& a, const Outputs& b, const Case& c) {
    if (a.token != b.token && on_an_edge(c, a.token, b.token)) return true;
    bool same = a.token == b.token && a.state == b.state;
    if (c.row.logprobs == 0 || a.token < 0) return same;
    same &= close(a.logprob, b.logprob);
    const uint32_t top = std::min(c.row.logprobs - 1, static_cast<uint32_t>(c.logits.size()));
    for (uint32_t k = 0; k < top; ++k) same &= a.ids[k] == b.ids[k] && close(a.logprobs[k], b.logprobs[k]);
    return same;
}

}  // namespace
}  // namespace blink

int main(int, char** arguments) {
    using namespace blink;
    const auto number = [arguments](int i) { return static_cast<uint32_t>(std::atoi(arguments[i])); };
    const LaneCut cut{number(1), number(2), number(3)};
    Cases cases(number(4));
    const int rows = std::atoi(arguments[5]);
    const std::vector<int32_t> eos{2, 5};
    EngineTables engine{};
    engine.eos_token_ids = eos.data();
    engine.eos_count = static_cast<uint32_t>(eos.size());
    int drawn = 0, refused = 0, constrained = 0, wrong = 0;
    for (int i = 0; i < rows; ++i) {
        engine.vocabulary_size = kVocabularies[i % 3];
        Case c = cases.next(engine.vocabulary_size);
        const Outputs expected = sample_on_host(c, engine.vocabulary_size, eos);
        const Outputs found = sample_by_lanes(c, engine, cut);
        drawn += c.row.temperature > 0.0f && expected.token >= 0;
        refused += expected.token < 0;
        constrained += !c.grammar.empty() && expected.token >= 0;
        if (agree(found, expected, c)) continue;
        wrong += 1;
        std::printf(
            "row %d: %d, expected %d (vocabulary %zu, temperature %g, top_k %d, top_p %g, min_p %g, "
            "logprobs %u: %g, expected %g)\n",
            i, found.token, expected.token, c.logits.size(), c.row.temperature, c.row.top_k, c.row.top_p, c.row.min_p,
            c.row.logprobs, found.logprob, expected.logprob);
    }
    std::printf("rows %d drawn %d refused %d constrained %d wrong %d\n", rows, drawn, refused, constrained, wrong);
    return wrong != 0;
}
