// What wide_product.h asks of a port, on a GPU of compute capability 9.0.
#pragma once

#include "lanes.h"

namespace blink {

// CUtensorMap.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

class GpuTiles {
  public:
    // `shared`: dynamic shared memory, of which 1,023 bytes may be left out to align it.
    __device__ explicit GpuTiles(unsigned char* shared)
        : shared_(shared + (0u - address(shared)) % 1024), warp_(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)) {}

    __device__ static uint32_t thread() { return threadIdx.x; }
    __device__ uint32_t warp() const { return warp_; }  // alike in all lanes, so that the compiler knows
    __device__ static uint32_t block() { return blockIdx.x; }
    __device__ void* shared() const { return shared_; }
    __device__ static void let_next_in() { asm volatile("griddepcontrol.launch_dependents;"); }
    // The copies read what the kernel ahead wrote by other means than they do.
    __device__ static void await_previous() {
        asm volatile("griddepcontrol.wait;\nfence.proxy.async.global;" ::: "memory");
    }
    __device__ static void sync() {
        __syncwarp();
        __syncthreads();
    }
    __device__ static void fetch_map(const TensorMap* map) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }

    __device__ static void make_barrier(uint64_t* barrier, uint32_t count) { make_barriers(barrier, 1, count); }
    // A fence for all of them: one each takes longer than the block's first copies.
    __device__ static void make_barriers(uint64_t* barriers, uint32_t number, uint32_t count) {
        for (uint32_t i = 0; i < number; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barriers + i)), "r"(count) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __device__ static void expect(uint64_t* barrier, uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes)
                     : "memory");
    }
    __device__ static void await(uint64_t* barrier, uint32_t parity) {
        while (!is_done(barrier, parity)) {
        }
    }
    __device__ static void arrive(uint64_t* barrier) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
    }

    // The L2 cache need not keep what is read once a step.
    __device__ static void copy_once(unsigned char* to, const TensorMap* map, uint32_t inner, uint32_t row,
                                     uint64_t* barrier) {
        copy_box(to, map, inner, row, barrier, kPass);
    }
    __device__ static void copy_often(unsigned char* to, const TensorMap* map, uint32_t inner, uint32_t row,
                                      uint64_t* barrier) {
        copy_box(to, map, inner, row, barrier, kKeep);
    }

    // The descriptor of rows of 128 swizzled bytes, of which eights lie 1,024 bytes apart.
    __device__ static uint64_t matrix(const unsigned char* place) {
        return (address(place) & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    }
    __device__ static void begin_multiply() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
    __device__ static void commit_multiply() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
    template <uint32_t kPending, uint32_t kParts, uint32_t kSums>
    __device__ static void await_multiplied(float (&sums)[kParts][kSums]) {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
        if (kPending == 0) {
#pragma unroll
            for (uint32_t i = 0; i < kParts * kSums; ++i) asm volatile("" : "+f"(sums[i / kSums][i % kSums])::"memory");
        }
    }

#define BLINK_SUMS_4(at) "+f"(sums[at]), "+f"(sums[at + 1]), "+f"(sums[at + 2]), "+f"(sums[at + 3])
#define BLINK_SUMS_8(at) BLINK_SUMS_4(at), BLINK_SUMS_4(at + 4)
#define BLINK_WGMMA(N, SUMS, A, B, ADD)                                                                            \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" SUMS \
    "}, " A ", " B ", p, 1, 1, 0, 0;\n}"
    template <uint32_t kSums>
    __device__ static void multiply(float (&sums)[kSums], const unsigned char* a, const unsigned char* b, bool add) {
        multiply(sums, matrix(a), matrix(b), add);
    }
    __device__ static void multiply(float (&sums)[4], uint64_t a, uint64_t b, bool add) {
        asm volatile(BLINK_WGMMA("8", "%0, %1, %2, %3", "%4", "%5", "%6")
                     : BLINK_SUMS_4(0)
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    }
    __device__ static void multiply(float (&sums)[8], uint64_t a, uint64_t b, bool add) {
        asm volatile(BLINK_WGMMA("16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10")
                     : BLINK_SUMS_8(0)
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    }
    __device__ static void multiply(float (&sums)[16], uint64_t a, uint64_t b, bool add) {
        asm volatile(BLINK_WGMMA("32", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16",
                                 "%17", "%18")
                     : BLINK_SUMS_8(0), BLINK_SUMS_8(8)
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    }
    __device__ static void multiply(float (&sums)[32], uint64_t a, uint64_t b, bool add) {
        asm volatile(BLINK_WGMMA("64",
                                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
                                 "%32", "%33", "%34")
                     : BLINK_SUMS_8(0), BLINK_SUMS_8(8), BLINK_SUMS_8(16), BLINK_SUMS_8(24)
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    }
#undef BLINK_WGMMA
#undef BLINK_SUMS_8
#undef BLINK_SUMS_4

    // Volatile, so that addresses are reckoned one after the other: together they take many registers.
    __device__ static void store(float* to, float value) {
        asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
    }
    __device__ static void store(uint16_t* to, float value) {
        uint16_t bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(bits) : "memory");
    }

  protected:
    // The cache's policies for what is read once and often.
    static constexpr uint64_t kPass = 0x12F0000000000000ull, kKeep = 0x14F0000000000000ull;

    __device__ static uint32_t address(const void* place) {
        return static_cast<uint32_t>(__cvta_generic_to_shared(place));
    }

    __device__ static bool is_done(uint64_t* barrier, uint32_t parity) {
        uint32_t done;
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(address(barrier)), "r"(parity)
                     : "memory");
        return done != 0;
    }

  private:
    __device__ static void copy_box(unsigned char* to, const TensorMap* map, uint32_t inner, uint32_t row,
                                    uint64_t* barrier, uint64_t policy) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(address(to)),
            "l"(map), "r"(address(barrier)), "r"(inner), "r"(row), "l"(policy)
            : "memory");
    }

    unsigned char* const shared_;
    const uint32_t warp_;
};

}  // namespace blink
