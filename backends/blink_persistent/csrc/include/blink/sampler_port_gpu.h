// What sampler_lanes.h asks of a port, on a GPU; clusters from compute capability 9.0 on.
#pragma once

#include "sampler_masses.h"

namespace blink {

struct SamplerGpuPort {
    __device__ static uint32_t thread() { return threadIdx.x; }
    __device__ static void sync() { __syncthreads(); }
    __device__ static void sync_warp() { __syncwarp(); }

    __device__ static uint64_t warp_sum(uint64_t value) {
#if __CUDA_ARCH__ >= 800
        constexpr uint32_t kPart = (1u << 24) - 1;  // so that the sum of 32 fits a word
        const uint64_t low = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(value) & kPart);
        const uint64_t middle = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(value >> 24) & kPart);
        const uint64_t high = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(value >> 48));
        return low + (middle << 24) + (high << 48);
#else
        for (uint32_t mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
        return value;
#endif
    }

    __device__ static uint64_t warp_max(uint64_t value) {
#if __CUDA_ARCH__ >= 800
        const auto own = static_cast<uint32_t>(value >> 32);
        const uint32_t high = __reduce_max_sync(0xffffffffu, own);
        const uint32_t low = __reduce_max_sync(0xffffffffu, own == high ? static_cast<uint32_t>(value) : 0u);
        return static_cast<uint64_t>(high) << 32 | low;
#else
        for (uint32_t mask = 16; mask > 0; mask /= 2) {
            const uint64_t other = __shfl_xor_sync(0xffffffffu, value, mask);
            value = other > value ? other : value;
        }
        return value;
#endif
    }

    __device__ static Share warp_share(uint64_t value) {
        uint64_t inclusive = value;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint64_t before = __shfl_up_sync(0xffffffffu, inclusive, step);
            if (threadIdx.x % 32 >= step) inclusive += before;
        }
        return {inclusive - value, __shfl_sync(0xffffffffu, inclusive, 31)};
    }

    __device__ static uint64_t warp_value(uint64_t value, uint32_t lane) {
        return __shfl_sync(0xffffffffu, value, lane);
    }
    __device__ static bool warp_any(bool value) { return __any_sync(0xffffffffu, value); }

    __device__ static void add(uint32_t* word, uint32_t value) { atomicAdd(word, value); }
    __device__ static void add(float* word, float value) { atomicAdd(word, value); }
    __device__ static void set_bits(uint32_t* word, uint32_t bits) { atomicOr(word, bits); }
    __device__ static uint32_t take(uint32_t* word) { return atomicExch(word, 0u); }

#if __CUDA_ARCH__ >= 900
    // Read each time: kept, they would take registers of the logits.
    __device__ static uint32_t rank() {
        uint32_t rank;
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        return rank;
    }
    __device__ static uint32_t blocks() {
        uint32_t blocks;
        asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
        return blocks;
    }

    __device__ static void enter() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
    __device__ static void await_others() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
    __device__ static void sync_cluster() {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }

    __device__ static void open_mailbox(uint64_t* mailbox) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place_of(mailbox)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ static void expect(uint64_t* mailbox, uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place_of(mailbox)), "r"(bytes)
                     : "memory");
    }
    __device__ static void send(uint64_t* to, uint64_t* mailbox, uint32_t rank, uint64_t value) {
        asm volatile(
            "{\n\t.reg .u32 place, box;\n\t"
            "mapa.shared::cluster.u32 place, %0, %2;\n\t"
            "mapa.shared::cluster.u32 box, %1, %2;\n\t"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [place], %3, [box];\n\t}" ::"r"(place_of(to)),
            "r"(place_of(mailbox)), "r"(rank), "l"(value)
            : "memory");
    }
    __device__ static void await_mailbox(uint64_t* mailbox, uint32_t parity) {
        asm volatile(
            "{\n\t.reg .pred full;\n\t"
            "again: mbarrier.try_wait.parity.shared::cta.b64 full, [%0], %1;\n\t"
            "@!full bra again;\n\t}" ::"r"(place_of(mailbox)),
            "r"(parity)
            : "memory");
    }

  private:
    __device__ static uint32_t place_of(const void* shared) {
        return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    }
#endif
};

}  // namespace blink
