// Runs the scheduler with several lanes on a host, as a thread block does, on a random script of
// submits, cancels and releases, and prints every decision and every output. What it prints must
// not depend on the number of lanes.
//
// usage: lanes LANES SEED fixed|movable|mixed PUBLISHES
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <thread>

#include "blink/host_scheduler.h"
#include "blink/ring_host.h"
#include "blink/scripted.h"

namespace blink {

// What the lanes share. The barrier sleeps: std::barrier yields first, and beside a busy process each
// yield costs a time slice.
struct Block {
    explicit Block(uint32_t lanes) : values{std::vector<uint32_t>(lanes), std::vector<uint32_t>(lanes)}, lanes(lanes) {
        pthread_barrier_init(&barrier, nullptr, lanes);
    }
    ~Block() { pthread_barrier_destroy(&barrier); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    pthread_barrier_t barrier;
    std::vector<uint32_t> values[2];
    uint32_t lanes;
    std::optional<uint32_t> launched;
    uint64_t clock = 0;
    bool publishes = false;             // the host changes the lookup tables all the time
    std::atomic<uint32_t> lookups = 0;  // reads of them
};

constexpr uint16_t kMixedGraph = 3;

class LanePort {
  public:
    LanePort(Block& block, uint32_t lane) : block_(block), lane_(lane) {}
    static constexpr bool kNotifies = false;
    static constexpr bool kPollsAhead = true;
    uint32_t lane() const { return lane_; }
    uint32_t row_lane() const { return block_.lanes - 1 - lane_; }
    uint32_t lanes() const { return block_.lanes; }
    void sync() { pthread_barrier_wait(&block_.barrier); }
    bool any(bool value) { return sum(value) != 0; }
    uint32_t sum(uint32_t value) { return fold(value, block_.lanes); }
    uint32_t scan(uint32_t value) { return fold(value, lane_); }
    static void acquire() {}
    static FrontendWords load_words(FrontendWords* words) { return HostPort::load_words(words); }
    static ControlWords control_words(const ControlWords* control) { return HostPort::control_words(control); }
    static void ask_control(const ControlWords*) {}
    static void expect(uint32_t) {}
    static uint32_t load_acquire(uint32_t* word) { return HostPort::load_acquire(word); }
    // While the host publishes, every other read of the small decode graph's entry still finds the large
    // one, and every other one of a mixed graph's none.
    uint32_t load(const uint16_t* word) const {
        const bool late = block_.lookups++ % 2 == 0 && block_.publishes;
        if (late && *word == kMixedGraph) return kNoGraph;
        return late && *word == 0 ? 1 : HostPort::load(word);
    }
    template <class T>
    static void store_release(T* word, T value) {
        HostPort::store_release(word, value);
    }
    template <class T>
    static void store(T* word, T value) {
        HostPort::store(word, value);
    }
    static void release() {}
    LaunchResult launch(uint32_t graph) {
        block_.launched = graph;
        return LaunchResult::kLaunched;
    }
    uint64_t now_ns() const { return block_.clock; }
    static uint32_t scan_share(uint32_t slots) { return slots; }
    static void rest(uint64_t) {}
    static bool watches(uint64_t) { return false; }
    static void stamp(Moment) {}

  private:
    // With one barrier, as on the GPU: what follows may not rely on a second.
    uint32_t fold(uint32_t value, uint32_t until) {
        std::vector<uint32_t>& values = block_.values[parity_ ^= 1];
        values[lane_] = value;
        sync();
        uint32_t total = 0;
        for (uint32_t lane = 0; lane < until; ++lane) total += values[lane];
        return total;
    }
    Block& block_;
    uint32_t lane_;
    uint32_t parity_ = 0;
};

constexpr uint32_t kSlots = 256, kArena = 96, kContext = 80, kVocabulary = 500;

std::unique_ptr<HostEngine> make_engine(bool movable, bool mixed) {
    auto engine = std::make_unique<HostEngine>();
    engine->graphs = {{Phase::kDecode, 4, 4}, {Phase::kDecode, 12, 12}, {Phase::kPrefill, 5, 48}};
    engine->decode_lookup = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    engine->prefill_lookup.assign(5 * 3, 2);
    engine->eos_token_ids = {7};
    EngineTables& t = engine->tables;
    t.max_rows = 12;
    t.max_sequences = 5;
    t.max_prefill_tokens = 48;
    t.token_granularity = 16;
    t.context_length = kContext;
    t.vocabulary_size = kVocabulary;
    t.block_size = movable ? 4 : kContext;
    t.block_count = 60;
    t.max_blocks = movable ? kContext / 4 : 1;
    t.rows_movable = movable;
    t.prefill_chunk = 30;
    if (mixed) {
        engine->graphs.push_back({Phase::kMixed, 3, 20, 9});
        engine->mixed_lookup.assign(12 * 2, kNoGraph);
        std::fill_n(engine->mixed_lookup.begin(), 9 * 2, kMixedGraph);
        t.mixed_sequences = 3;
        t.max_mixed_tokens = 20;
    }
    engine->finish();
    return engine;
}

// What frontends do between two passes.
class Script {
  public:
    Script(RingView ring, uint32_t seed) : ring_(ring), random_(seed) {}

    void act(uint32_t pass) {
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            const StatusWord status =
                unpack_status(std::atomic_ref(ring_.status[slot].word).load(std::memory_order_acquire));
            const uint32_t ticket = ring_.words[slot].submit;
            if (status.state == SlotState::kEmpty && ring_.status[slot].ticket == ticket) {
                if (pass < 400 && chance(300)) submit(slot, ticket_after(ticket));
            } else if (status.state == SlotState::kDecodeCompleted) {
                if (ring_.words[slot].release != ticket) report(slot, ticket, status);
                HostPort::store_release(&ring_.words[slot].release, ticket);
            } else if (chance(400)) {
                HostPort::store_release(&ring_.words[slot].cancel, ticket);
            }
        }
    }

    bool all_empty() const {
        for (uint32_t slot = 0; slot < kSlots; ++slot)
            if (unpack_status(ring_.status[slot].word).state != SlotState::kEmpty) return false;
        return true;
    }

  private:
    bool chance(uint32_t one_in) { return random_() % one_in == 0; }

    void submit(uint32_t slot, uint32_t ticket) {
        RequestRecord record{};
        record.prompt_offset = record.output_offset = slot * kArena;
        record.prompt_length = 1 + random_() % (kContext - 2);
        record.max_tokens = 1 + random_() % 40;
        record.min_tokens = random_() % 4;
        record.priority = random_() % 2;
        record.top_p = record.repetition_penalty = 1.0f;
        for (uint32_t i = 0; i < record.prompt_length; ++i)
            ring_.prompts(0)[record.prompt_offset + i] = static_cast<int32_t>(random_() % kVocabulary);
        ring_.records[slot] = record;
        HostPort::store_release(&ring_.words[slot].submit, ticket);
    }

    void report(uint32_t slot, uint32_t ticket, StatusWord status) {
        std::printf("output %u %u %u:", slot, ticket, static_cast<uint32_t>(status.reason));
        for (uint32_t i = 0; i < status.generated; ++i)
            std::printf(" %d", ring_.outputs(0)[ring_.records[slot].output_offset + i]);
        std::printf("\n");
    }

    RingView ring_;
    std::mt19937 random_;
};

int run(uint32_t lanes, uint32_t seed, std::string_view rows, bool publishes) {
    const auto engine = make_engine(rows != "fixed", rows == "mixed");
    const RingShape shape{1, kSlots, kSlots * kArena, kSlots * kArena, 1024};
    std::vector<RingHeader> ring_memory(describe_ring(shape, 1).total_bytes / sizeof(RingHeader));
    create_ring(ring_memory.data(), ring_memory.size() * sizeof(RingHeader), shape, 1);
    const RingView ring = view_ring(ring_memory.data());
    std::vector<StateLine> memory(lay_out_state(nullptr, kSlots, engine->tables, 1 << 16) / sizeof(StateLine) + 1);
    auto* bytes = memory.front().bytes;
    lay_out_state(bytes, kSlots, engine->tables, 1 << 16);
    auto& state = *reinterpret_cast<SchedulerState*>(bytes);
    initialize_state(state, engine->tables);
    ScriptedEngine scripted(engine->tables, {kVocabulary, 7, 25});
    const ControlWords control{static_cast<uint32_t>(Command::kRun), 0};
    Script script(ring, seed);
    Block block(lanes);
    block.publishes = publishes;
    uint32_t quiet = 0;
    // Between two passes lane 0 is the frontends and, every other pass, the engine.
    const auto between = [&](uint32_t pass) {
        script.act(pass);
        block.clock += 1000;
        if (block.launched && pass % 2 == 0) {
            const GraphKey key = engine->graphs[*block.launched];
            block.launched.reset();
            scripted.step(key);
            for (uint32_t part = first_part(key.phase); part < end_part(key.phase); ++part) {
                uint32_t* completion = engine->tables.buffers[part].completion;
                HostPort::store_release(completion, *completion + 1);
            }
        }
        quiet = script.all_empty() ? quiet + 1 : 0;
    };
    const auto lane = [&](uint32_t number) {
        LanePort port(block, number);
        Scheduler<LanePort> scheduler(port, ring, engine->tables, state, &control);
        for (uint32_t pass = 0; pass < 20000; ++pass) {
            if (number == 0) between(pass);
            port.sync();
            if (quiet > 500) break;
            scheduler.pass();
            port.sync();
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t number = 1; number < lanes; ++number) threads.emplace_back(lane, number);
    lane(0);
    for (std::thread& thread : threads) thread.join();
    for (uint32_t i = 0; i < state.trace_count; ++i)
        std::printf("trace %u %u %u %u\n", static_cast<uint32_t>(state.trace[i].kind), state.trace[i].a,
                    state.trace[i].b, state.trace[i].c);
    const RingHeader& h = *ring.header;
    std::printf("lookups %u\n", block.lookups.load());
    std::printf("claims %lu completions %lu preemptions %lu moves %lu relaunches %lu rows %u blocks %u\n", h.claims,
                h.completions, h.preemptions, h.row_moves, h.tail_launches, h.rows_used, h.blocks_used);
    return script.all_empty() && h.claims == h.completions ? 0 : 1;
}

}  // namespace blink

int main(int count, char** arguments) {
    if (count != 5) return 2;
    const auto number = [arguments](int place) { return static_cast<uint32_t>(std::atoi(arguments[place])); };
    return blink::run(number(1), number(2), arguments[3], number(4) != 0);
}
