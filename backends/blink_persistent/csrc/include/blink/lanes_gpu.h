// What primed_product.h and direct_attention.h ask of a port, on a GPU of compute capability 9.0 or more.
#pragma once

#include "lanes.h"

namespace blink {

class GpuLanes {
  public:
    // `shared` is the kernel's dynamic shared memory.
    __device__ explicit GpuLanes(void* shared) : shared_(shared) {}

    __device__ static uint32_t thread() { return threadIdx.x; }
    __device__ static uint32_t block() { return blockIdx.x; }
    __device__ void* shared() const { return shared_; }
    __device__ static void sync() { __syncthreads(); }
    __device__ static void sync_warp() { __syncwarp(); }
    __device__ static float exchange(float value, uint32_t lane) { return __shfl_sync(0xffffffffu, value, lane); }
    __device__ static float exchange_xor(float value, uint32_t mask) {
        return __shfl_xor_sync(0xffffffffu, value, mask);
    }
    __device__ static uint32_t count(bool condition) { return __popc(__ballot_sync(0xffffffffu, condition)); }

    __device__ static void let_next_in() { asm volatile("griddepcontrol.launch_dependents;"); }
    __device__ static void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

    // Past the L1 cache, and with the other sectors of a line.
    __device__ static void copy(Chunk* to, const uint16_t* from) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                         static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                     "l"(__cvta_generic_to_global(from))
                     : "memory");
    }
    __device__ static void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <uint32_t kPending>
    __device__ static void wait_copies() {
        asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
    }

    // From the L2 cache, since the multiprocessor's own may have what lay there before.
    __device__ static Chunk load(const uint16_t* from) {
        const uint4 value = __ldcg(reinterpret_cast<const uint4*>(from));
        return {value.x, value.y, value.z, value.w};
    }
    template <class Value>
    __device__ static Value fetch(const Value* from) {
        return __ldcg(from);
    }
    // Past the L1 cache, too, and with the other sectors of a line; begun where it stands.
    __device__ static Chunk load_ahead(const uint16_t* from) {
        Chunk value;
        asm volatile("ld.global.cg.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
                     : "l"(__cvta_generic_to_global(from)));
        return value;
    }
    __device__ static Chunk read(const Chunk* from) {
        const uint4 value = *reinterpret_cast<const uint4*>(from);
        return {value.x, value.y, value.z, value.w};
    }
    __device__ static void write(Chunk* to, const Chunk& value) {
        *reinterpret_cast<uint4*>(to) = make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
    }

    __device__ static Chunk read_matrices(const Chunk* row) {
        Chunk value;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
                     : "r"(place_of(row))
                     : "memory");
        return value;
    }
    __device__ static Chunk read_transposed(const Chunk* row) {
        Chunk value;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
                     : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                     : "memory");
        return value;
    }

    __device__ static uint32_t transpose(uint32_t word) {
        uint32_t value;
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(value) : "r"(word));
        return value;
    }

    __device__ static void open_mailbox(uint64_t* mailbox, uint32_t bytes) {
        const uint32_t place = place_of(mailbox);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place), "r"(bytes) : "memory");
    }
    __device__ static void enter_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
    __device__ static void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
    __device__ static void send(float* to, uint64_t* mailbox, uint32_t rank, float value) {
        asm volatile(
            "{\n\t.reg .u32 place, box;\n\t"
            "mapa.shared::cluster.u32 place, %0, %2;\n\t"
            "mapa.shared::cluster.u32 box, %1, %2;\n\t"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %3, [box];\n\t}" ::"r"(place_of(to)),
            "r"(place_of(mailbox)), "r"(rank), "r"(__float_as_uint(value))
            : "memory");
    }
    __device__ static void await_mailbox(uint64_t* mailbox) {
        asm volatile(
            "{\n\t.reg .pred full;\n\t"
            "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 full, [%0], 0;\n\t"
            "@!full bra again;\n\t}" ::"r"(place_of(mailbox))
            : "memory");
    }

    __device__ static uint32_t add(uint32_t* counter) {
        uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        return before;
    }
    __device__ uint32_t arrive(uint32_t* counter) {
        __shared__ uint32_t before;
        __syncthreads();
        if (threadIdx.x == 0) before = add(counter);
        __syncthreads();
        return before;
    }

    __device__ static void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }

  private:
    __device__ static uint32_t place_of(const void* shared) {
        return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    }

    void* shared_;
};

}  // namespace blink
