// What even_attention.h asks of a port, on a GPU of compute capability 9.0 or more.
#pragma once

#include "lanes_gpu.h"
#include "tiles_gpu.h"

namespace blink {

class GpuPages : public GpuLanes {
  public:
    // `shared`: dynamic shared memory, of which 1,023 bytes may be left out to align it.
    __device__ explicit GpuPages(unsigned char* shared)
        : GpuLanes(shared + (0u - static_cast<uint32_t>(__cvta_generic_to_shared(shared))) % 1024) {}

    __device__ static uint32_t blocks() { return gridDim.x; }
    template <uint32_t kThreads>
    __device__ static void sync_some() {
        asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    }

    __device__ static void make_barrier(uint64_t* barrier, uint32_t count) { GpuTiles::make_barrier(barrier, count); }
    __device__ static void expect(uint64_t* barrier, uint32_t bytes) { GpuTiles::expect(barrier, bytes); }
    __device__ static void await(uint64_t* barrier, uint32_t parity) { GpuTiles::await(barrier, parity); }
    __device__ static void arrive(uint64_t* barrier) { GpuTiles::arrive(barrier); }

    __device__ static void begin_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
    __device__ static void copy_once(Chunk* to, const TensorMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        GpuTiles::copy_once(reinterpret_cast<unsigned char*>(to), map, inner, row, barrier);
    }
};

}  // namespace blink
