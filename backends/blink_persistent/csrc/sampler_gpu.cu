// The last kernel of a step of a phase: samples each row, then counts the step as completed. A mixed
// step ends with two of them.
//
// A sampler plugin's code stands before this text and defines BLINK_SAMPLER (sampler_plugin.h).
#include "blink/sampler_block.h"

#ifndef BLINK_SAMPLER
#define BLINK_SAMPLER BlockSampler
#endif

namespace blink {

struct SamplerGpu {
    EngineTables engine;
    float* logits;      // [all rows, vocabulary_size]
    uint64_t* scratch;  // [rows of a phase, vocabulary_size]
    uint32_t* ended;    // blocks of the running launch that are done
};

class GpuBlock {
  public:
    static constexpr uint32_t kLanes = 1024;
    static constexpr uint32_t kWarps = kLanes / 32;

    struct Shared {
        uint64_t warps[2][kWarps];
    };

    __device__ explicit GpuBlock(Shared& shared) : shared_(shared) {}

    __device__ static uint32_t lane() { return threadIdx.x; }
    __device__ static constexpr uint32_t lanes() { return kLanes; }
    __device__ static void sync() { __syncthreads(); }

    __device__ uint64_t sum(uint64_t value) {
        return reduce(value, [](uint64_t a, uint64_t b) { return a + b; });
    }
    __device__ uint64_t max(uint64_t value) {
        return reduce(value, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    }

    __device__ uint64_t scan(uint64_t value) {
        const uint32_t in_warp = threadIdx.x % 32;
        uint64_t inclusive = value;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint64_t below = __shfl_up_sync(0xffffffffu, inclusive, step);
            if (in_warp >= step) inclusive += below;
        }
        uint64_t* warps = next_warps();
        if (in_warp == 31) warps[threadIdx.x / 32] = inclusive;
        __syncthreads();
        uint64_t before = 0;
        for (uint32_t warp = 0; warp < threadIdx.x / 32; ++warp) before += warps[warp];
        return before + inclusive - value;
    }

    __device__ static void add(uint32_t* word, uint32_t value) { atomicAdd(word, value); }
    __device__ static void add(float* word, float value) { atomicAdd(word, value); }
    __device__ static void set_bits(uint32_t* word, uint32_t bits) { atomicOr(word, bits); }
    __device__ static uint32_t take(uint32_t* word) { return atomicExch(word, 0u); }

  private:
    // The words of two successive calls lie apart, so that one barrier is enough.
    __device__ uint64_t* next_warps() { return shared_.warps[parity_ ^= 1]; }

    template <class Combine>
    __device__ uint64_t reduce(uint64_t value, Combine combine) {
        for (uint32_t step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
        uint64_t* warps = next_warps();
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
        __syncthreads();
        value = warps[threadIdx.x % 32];
        for (uint32_t step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
        return value;
    }

    Shared& shared_;
    uint32_t parity_ = 0;
};

}  // namespace blink

// One block a row; the logits of the phase's row 0 are at row `first`. The block that ends last
// counts the step: a scheduler that sees the count at system scope sees every row's outputs.
extern "C" __global__ void __launch_bounds__(blink::GpuBlock::kLanes)
    blink_sample(const blink::SamplerGpu* sampler, uint32_t phase, uint32_t first) {
    using namespace blink;
    __shared__ GpuBlock::Shared shared;
    const PhaseBuffers& buffers = sampler->engine.buffers[phase];
    SamplingRow& row = buffers.sampling[blockIdx.x];
    if ((row.flags & kSamplingActive) != 0) {
        GpuBlock block(shared);
        const uint64_t size = sampler->engine.vocabulary_size;
        float* logits = sampler->logits + (first + blockIdx.x) * size;
        uint64_t* scratch = sampler->scratch + blockIdx.x * size;
        BLINK_SAMPLER<GpuBlock>(block, sampler->engine, row, logits, scratch).sample(buffers, blockIdx.x);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(sampler->ended, 1u) != gridDim.x - 1) return;
    *sampler->ended = 0;
    __threadfence_system();
    const uint32_t completed = *buffers.completion + 1;
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(buffers.completion), "r"(completed) : "memory");
}
