// The scheduler's port for a GPU: one thread block, device-side graph launch, system-scope ordering.
//
// Compiles with nvcc (-rdc=true) and with NVRTC (--relocatable-device-code=true); linked with
// cudadevrt. Everything the scheduler shares with a frontend is ordered at system scope, since the
// frontend may be a NIC or a host.
#pragma once

#include "scheduler.h"

namespace blink {

// Moments of the scheduler's steps, in the order they came, until the capacity is reached.
struct Profile {
    uint64_t* events;  // [capacity] nanoseconds << 8 | moment
    uint32_t capacity;
    uint32_t count;
};

// Moments beside those of a step (Moment in scheduler.h).
constexpr uint32_t kMomentRelaunching = 100;  // about to replace this instance
constexpr uint32_t kMomentStarted = 101;      // first instruction of an instance

class GpuPort {
  public:
    static constexpr uint32_t kLanes = 256;
    static constexpr uint32_t kWarps = kLanes / 32;
    static constexpr uint64_t kWatchNs = 16000;  // before a graph is due: watched without a rest
    static constexpr uint64_t kMaxRestNs = 5000;
    static constexpr bool kNotifies = false;  // the agent polls
    static constexpr bool kPollsAhead = true;

    struct Shared {
        uint32_t warp_sums[kWarps];
        uint32_t sums[2][kWarps];
    };

    __device__ GpuPort(Shared& shared, const cudaGraphExec_t* graphs, Profile* profile)
        : shared_(shared), graphs_(graphs), profile_(profile) {}

    __device__ static uint32_t lane() { return threadIdx.x; }
    __device__ static constexpr uint32_t lanes() { return kLanes; }
    // Row r belongs to warp r % 8: a warp waits for each of its rows' cache lines in turn.
    __device__ static uint32_t row_lane() { return threadIdx.x % 32 * kWarps + threadIdx.x / 32; }
    __device__ static void sync() { __syncthreads(); }
    __device__ static bool any(bool value) { return __syncthreads_or(value) != 0; }

    // The sums of two successive calls lie apart, so that one barrier is enough.
    __device__ uint32_t sum(uint32_t value) {
        uint32_t* sums = shared_.sums[parity_ ^= 1];
        const uint32_t in_warp = __reduce_add_sync(0xffffffffu, value);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = in_warp;
        __syncthreads();
        uint32_t total = 0;
        for (uint32_t warp = 0; warp < kWarps; ++warp) total += sums[warp];
        return total;
    }

    // Exclusive prefix sum over the lanes.
    __device__ uint32_t scan(uint32_t value) {
        const uint32_t inclusive = block_scan(value);
        __syncthreads();
        return inclusive - value;
    }

    __device__ static void acquire() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

    __device__ static FrontendWords load_words(FrontendWords* words) {
        FrontendWords w{};
        // Not one read of all four: the register of the fourth would be taken for the next instructions,
        // which would wait for the read then.
        asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%3];\nld.relaxed.sys.global.u32 %2, [%3 + 8];"
                     : "=&r"(w.submit), "=&r"(w.release), "=r"(w.cancel)
                     : "l"(words)
                     : "memory");
        return w;
    }

    // As they were asked for last, a turn of the ring ago or before: the bus is crossed in a rest.
    __device__ ControlWords control_words(const ControlWords*) const { return control_; }

    // One read for both words; they announce no data, so nothing is acquired. Comes after the last use
    // of those before, else the compiler copies the new ones at once, and so waits for them. The next
    // pass waits for them in any case, some 1 us.
    __device__ void ask_control(const ControlWords* control) {
        asm volatile("ld.relaxed.sys.v2.u32 {%0, %1}, [%2];"
                     : "=r"(control_.command), "=r"(control_.close)
                     : "l"(control)
                     : "memory");
    }

    __device__ static uint32_t load_acquire(const uint32_t* word) {
        uint32_t value;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
        return value;
    }

    // Past the multiprocessor's own cache, which does not hear of what the host writes.
    __device__ static uint32_t load(const uint16_t* word) {
        uint16_t value;
        asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(value) : "l"(word) : "memory");
        return value;
    }

    __device__ static void store_release(uint32_t* word, uint32_t value) {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
    }

    __device__ static void store_release(uint64_t* word, uint64_t value) {
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
    }

    template <class T>
    __device__ static void store(T* word, T value) {
        *const_cast<volatile T*>(word) = value;
    }

    // One lane, after a barrier. __threadfence() would be a sequentially consistent fence, which costs more.
    __device__ static void release() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

    __device__ void expect(uint32_t graph) {
        expected_ = graph;
        expected_executable_ = executable(graph);
    }

    __device__ LaunchResult launch(uint32_t graph) {
        const cudaGraphExec_t launched = graph == expected_ ? expected_executable_ : executable(graph);
        const cudaError_t error = cudaGraphLaunch(launched, cudaStreamGraphFireAndForget);
        if (error == cudaSuccess) return LaunchResult::kLaunched;
        error_ = static_cast<uint32_t>(error);
        // The exec's last run set its completion counter but is not retired yet.
        return error == cudaErrorInvalidValue ? LaunchResult::kRetry : LaunchResult::kFailed;
    }

    __device__ static uint64_t now_ns() {
        uint64_t now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        return now;
    }

    // Reading memory all the time slows the start of a graph's kernels, so most of a step is slept
    // through. A sleep lasts up to twice as long as asked, at most half of what is left.
    __device__ static void rest(uint64_t due_ns) {
        const uint64_t now = now_ns();
        if (due_ns > now + kWatchNs) __nanosleep(static_cast<uint32_t>(min((due_ns - now) / 4, kMaxRestNs)));
    }

    // A graph that is overdue may take long.
    __device__ static bool watches(uint64_t due_ns) {
        const uint64_t now = now_ns();
        return now < due_ns && due_ns <= now + kWatchNs;
    }

    // The cudaError_t of the last launch that did not succeed.
    __device__ uint32_t error() const { return error_; }

    __device__ void stamp(Moment moment) { stamp(static_cast<uint32_t>(moment)); }
    __device__ void stamp(uint32_t moment) {
        if (profile_ == nullptr || lane() != 0 || profile_->count >= profile_->capacity) return;
        profile_->events[profile_->count++] = now_ns() << 8 | moment;
    }

    // About as long as one poll takes.
    __device__ static uint32_t scan_share(uint32_t slots) { return slots < 2 * kLanes ? slots : 2 * kLanes; }

  private:
    // Written before the table names the graph.
    __device__ cudaGraphExec_t executable(uint32_t graph) const {
        uint64_t value;
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(graphs_ + graph) : "memory");
        return reinterpret_cast<cudaGraphExec_t>(value);
    }

    // Inclusive prefix sum; afterwards warp_sums holds the inclusive sums of whole warps.
    __device__ uint32_t block_scan(uint32_t value) {
        const uint32_t in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t below = __shfl_up_sync(0xffffffffu, value, step);
            if (in_warp >= step) value += below;
        }
        if (in_warp == 31) shared_.warp_sums[warp] = value;
        __syncthreads();
        if (warp == 0 && in_warp < kWarps) {
            uint32_t total = shared_.warp_sums[in_warp];
            for (uint32_t step = 1; step < kWarps; step *= 2) {
                const uint32_t below = __shfl_up_sync((1u << kWarps) - 1, total, step);
                if (in_warp >= step) total += below;
            }
            shared_.warp_sums[in_warp] = total;
        }
        __syncthreads();
        return value + (warp == 0 ? 0 : shared_.warp_sums[warp - 1]);
    }

    Shared& shared_;
    const cudaGraphExec_t* graphs_;
    Profile* profile_;
    uint32_t expected_ = kNoGraph;
    cudaGraphExec_t expected_executable_ = nullptr;
    uint32_t error_ = 0;
    uint32_t parity_ = 0;
    ControlWords control_{static_cast<uint32_t>(Command::kRun), 0};
};

}  // namespace blink
