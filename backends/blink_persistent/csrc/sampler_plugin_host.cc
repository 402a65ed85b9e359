// A sampler plugin on a host: compiled with the plugin's code before this text, which defines
// BLINK_SAMPLER (sampler_plugin.h); loaded by samplers/source.py.
#include <utility>
#include <vector>

#include "blink/sampler_plugin.h"
#include "blink/thread_lanes.h"

namespace blink {
namespace {

// One thread as a whole block.
struct SoleLane {
    static constexpr uint32_t lane() { return 0; }
    static constexpr uint32_t lanes() { return 1; }
    static void sync() {}
    static uint64_t sum(uint64_t value) { return value; }
    static uint64_t max(uint64_t value) { return value; }
    template <uint32_t kCount>
    static void sums(uint64_t (&)[kCount]) {}
    static Share share(uint64_t value) { return {0, value}; }
    static constexpr uint32_t kBatch = 2;
    static constexpr uint32_t width() { return 1; }
    static Share group_share(uint64_t value) { return {0, value}; }
    static uint64_t of_first(uint64_t value) { return value; }
    SoleLane& local() { return *this; }
    static void add(uint32_t* word, uint32_t value) { *word += value; }
    static void add(float* word, float value) { *word += value; }
    static void set_bits(uint32_t* word, uint32_t bits) { *word |= bits; }
    static uint32_t take(uint32_t* word) { return std::exchange(*word, 0u); }
};

template <class Block>
void sample_row(Block& block, const EngineTables& engine, const PhaseBuffers& buffers, uint32_t index, float* logits,
                uint64_t* scratch) {
    BLINK_SAMPLER<Block>(block, engine, buffers.sampling[index], logits, scratch).sample(buffers, index);
}

}  // namespace
}  // namespace blink

// Samples the active ones of the first `count` rows of a phase; `logits` [count, stride] stay as
// they are. With `lanes` above 1 each row is sampled by so many threads, as by a GPU's: in so many
// blocks, and in groups of `width`.
extern "C" void blink_sample_rows(const blink::EngineTables* engine, uint32_t phase, uint32_t count,
                                  const float* logits, uint64_t stride, uint32_t lanes, uint32_t blocks,
                                  uint32_t width) {
    using namespace blink;
    const PhaseBuffers& buffers = engine->buffers[phase];
    const uint32_t size = engine->vocabulary_size;
    thread_local std::vector<float> row;
    thread_local std::vector<uint64_t> scratch;
    scratch.resize(size);
    for (uint32_t i = 0; i < count; ++i) {
        if ((buffers.sampling[i].flags & kSamplingActive) == 0) continue;
        row.assign(logits + i * stride, logits + i * stride + size);
        float* const values = row.data();
        uint64_t* const space = scratch.data();
        if (lanes == 1) {
            SoleLane lane;
            sample_row(lane, *engine, buffers, i, values, space);
        } else {
            run_lanes({lanes, blocks, width},
                      [&](Lane& lane) { sample_row(lane, *engine, buffers, i, values, space); });
        }
    }
}
