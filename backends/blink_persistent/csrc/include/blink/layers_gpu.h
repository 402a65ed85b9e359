// What layers_step.h asks of a port, on a GPU of compute capability 9.0.
//
// With BLINK_WATCHDOG waits end after so many cycles, and LayersCall::error tells which: for tests.
#pragma once

#include "lanes_gpu.h"
#include "layers_call.h"
#include "tiles_gpu.h"

namespace blink {

class GpuLayers : public GpuTiles {
  public:
    __device__ GpuLayers(unsigned char* shared, const LayersCall& call) : GpuTiles(shared), call_(call) {}

    __device__ static uint32_t blocks() { return gridDim.x; }

    __device__ void await(uint64_t* barrier, uint32_t parity) {
#ifdef BLINK_WATCHDOG
        const long long begin = clock64();
        while (!failed_ && !is_done(barrier, parity))
            if (clock64() - begin > BLINK_WATCHDOG) fail(1);
#else
        GpuTiles::await(barrier, parity);
#endif
    }

    // The L2 cache need not keep what is read once a step.
    __device__ static void copy_weights(unsigned char* to, const TensorMap* map, uint32_t row, uint32_t window,
                                        uint64_t* barrier) {
        copy_windows(to, map, row, window, barrier, kPass);
    }
    __device__ static void copy_inputs(unsigned char* to, const TensorMap* map, uint32_t window, uint64_t* barrier) {
        copy_windows(to, map, 0, window, barrier, kKeep);
    }

    // A descriptor, to which a number of bytes is added in one instruction.
    using Matrix = uint64_t;
    __device__ static Matrix beyond(Matrix matrix, uint32_t bytes) { return matrix + bytes / 16; }

    // Of lanes.
    __device__ static float exchange(float value, uint32_t lane) { return GpuLanes::exchange(value, lane); }
    __device__ static float exchange_xor(float value, uint32_t mask) { return GpuLanes::exchange_xor(value, mask); }
    __device__ static uint32_t count(bool condition) { return GpuLanes::count(condition); }
    __device__ static Chunk load(const uint16_t* from) { return GpuLanes::load(from); }
    template <class Value>
    __device__ static Value fetch(const Value* from) {
        return GpuLanes::fetch(from);
    }
    __device__ static void write(Chunk* to, const Chunk& value) { GpuLanes::write(to, value); }
    __device__ static Chunk read_matrices(const Chunk* row) { return GpuLanes::read_matrices(row); }
    __device__ static Chunk read_transposed(const Chunk* row) { return GpuLanes::read_transposed(row); }
    using GpuTiles::multiply;
    __device__ static void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b) {
        GpuLanes::multiply(sums, a, b);
    }
    __device__ static uint32_t add(uint32_t* counter) { return GpuLanes::add(counter); }

    template <uint32_t kNumber, uint32_t kThreads>
    __device__ static void sync_some() {
        asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
    }
    __device__ static uint32_t fresh(uint32_t value) {
        asm volatile("" : "+r"(value));
        return value;
    }
    __device__ static void sync_warp() { __syncwarp(); }
    __device__ static float sum_over(float value, uint32_t first_lane) {
#pragma unroll
        for (uint32_t bit = 1; bit < 32; bit *= 2)
            if (bit >= first_lane) value += exchange_xor(value, bit);
        return value;
    }

    // Volatile, so that it is asked for where it is written.
    __device__ static float load_once(const float* from) {
        float value;
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from));
        return value;
    }
    __device__ static void load_four(const float* from, float (&values)[4]) {
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                     : "l"(from)
                     : "memory");
    }

    // Bulk copies will read what this thread has stored.
    __device__ static void publish() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
    __device__ static void count_arrivals(uint64_t* counter, uint64_t number) {
        asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(number) : "memory");
    }
    __device__ void await_arrivals(const uint64_t* counter, uint64_t count) {
#ifdef BLINK_WATCHDOG
        const long long begin = clock64();
        while (!failed_ && arrivals(counter) < count)
            if (clock64() - begin > BLINK_WATCHDOG) fail(2);
#else
        while (arrivals(counter) < count) {
        }
#endif
        asm volatile("fence.proxy.async.global;" ::: "memory");
    }

  private:
    // The map's elements are [windows, parts, rows, 64].
    __device__ static void copy_windows(unsigned char* to, const TensorMap* map, uint32_t row, uint32_t window,
                                        uint64_t* barrier, uint64_t policy) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1, {%3, %4, %3, %5}], [%2], %6;" ::"r"(address(to)),
            "l"(map), "r"(address(barrier)), "r"(0), "r"(row), "r"(window), "l"(policy)
            : "memory");
    }

    __device__ static uint64_t arrivals(const uint64_t* counter) {
        uint64_t count;
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(counter) : "memory");
        return count;
    }

    __device__ void fail(uint32_t what) {
        failed_ = true;
        *call_.error = what | (threadIdx.x / 32) << 8 | blockIdx.x << 16;
    }

    const LayersCall& call_;
    bool failed_ = false;
};

}  // namespace blink
