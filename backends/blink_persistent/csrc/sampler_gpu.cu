// The last kernel of a step of a phase: samples each row, then counts the step as completed. A mixed
// step ends with two of them.
//
// A sampler plugin's code stands before this text and defines BLINK_SAMPLER (sampler_plugin.h).
#include "blink/sampler_block.h"
#include "blink/sampler_lanes.h"
#include "blink/sampler_port_gpu.h"

#ifndef BLINK_SAMPLER
#define BLINK_SAMPLER BlockSampler
#endif

namespace blink {

struct SamplerGpu {
    EngineTables engine;
    float* logits;      // [all rows, vocabulary_size]
    uint64_t* scratch;  // [rows of a phase, vocabulary_size]
    uint32_t* ended;    // rows of the running launch that are done
};

// All lanes; the logits of the phase's row 0 are at row `first`. Lane 0 has written the outputs.
template <class Block>
__device__ void sample_row(Block& block, const SamplerGpu& sampler, uint32_t phase, uint32_t first, uint32_t index) {
    const PhaseBuffers& buffers = sampler.engine.buffers[phase];
    const uint64_t size = sampler.engine.vocabulary_size;
    float* logits = sampler.logits + (first + index) * size;
    uint64_t* scratch = sampler.scratch + index * size;
    BLINK_SAMPLER<Block>(block, sampler.engine, buffers.sampling[index], logits, scratch).sample(buffers, index);
}

// By each row's lane 0, when no lane reads the row any more. The row that ends last counts the step: a scheduler that
// sees the count at system scope sees every row's outputs.
__device__ void end_row(const SamplerGpu& sampler, uint32_t phase, uint32_t rows) {
    if (rows > 1) {
        uint32_t ended;
        asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], 1;" : "=r"(ended) : "l"(sampler.ended) : "memory");
        if (ended != rows - 1) return;
        *sampler.ended = 0;
    }
    uint32_t* completion = sampler.engine.buffers[phase].completion;
    const uint32_t completed = *completion + 1;
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(completion), "r"(completed) : "memory");
}

__device__ bool is_active(const SamplerGpu& sampler, uint32_t phase, uint32_t index) {
    return (sampler.engine.buffers[phase].sampling[index].flags & kSamplingActive) != 0;
}

}  // namespace blink

// One block a row.
extern "C" __global__ void __launch_bounds__(1024)
    blink_sample(const blink::SamplerGpu* sampler, uint32_t phase, uint32_t first) {
    using namespace blink;
    __shared__ BlockLanes<SamplerGpuPort, 1024>::Shared shared;
    if (is_active(*sampler, phase, blockIdx.x)) {
        BlockLanes<SamplerGpuPort, 1024> block(shared);
        sample_row(block, *sampler, phase, first, blockIdx.x);
    }
    __syncthreads();
    if (threadIdx.x == 0) end_row(*sampler, phase, gridDim.x);
}

#if __CUDA_ARCH__ >= 900
// A cluster of up to 8 blocks a row.
extern "C" __global__ void __launch_bounds__(512, 2)
    blink_sample_clustered(const blink::SamplerGpu* sampler, uint32_t phase, uint32_t first) {
    using namespace blink;
    __shared__ ClusterLanes<SamplerGpuPort, 512>::Shared shared;
    ClusterLanes<SamplerGpuPort, 512> cluster(shared);
    const uint32_t row = blockIdx.x / cluster.blocks();
    cluster.await_others();
    if (is_active(*sampler, phase, row)) sample_row(cluster, *sampler, phase, first, row);
    cluster.enter();
    cluster.await_others();
    if (cluster.lane() == 0) end_row(*sampler, phase, gridDim.x / cluster.blocks());
}
#endif
