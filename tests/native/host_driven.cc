// Graphs on a device that a host drives, with a driver that does everything as late as it may:
// answers, the order of calls, the same actions as with an engine on the host, and every failure.
#include "fake_cuda.h"

namespace {

using namespace blink;

constexpr int kPatienceMs = 20000;

struct Bench {
    explicit Bench(StepWait wait, Rows rows = Rows::kMovable) : ring(1), wait(wait) {
        make_tables(tables, rows);
        cuda.emplace(tables.tables);
        host.emplace(tables.tables);
    }

    std::unique_ptr<CudaSteps> steps() {
        return std::make_unique<CudaSteps>(FakeCuda::driver(), cuda->context(), cuda->stream(), cuda->handles(),
                                           tables.tables, cuda->arenas.buffers, host->buffers, wait);
    }

    StatusWord wait_for(uint32_t slot, SlotState state) {
        for (int left = kPatienceMs; left > 0; --left) {
            const std::optional<StatusWord> status = ring.accepted(slot, 1);
            if (status && status->state == state) return *status;
            wait_for_bell(bell, 1);
        }
        CHECK(false, "slot %u does not reach state %u", slot, static_cast<unsigned>(state));
        std::abort();
    }

    SchedulerCondition wait_for_failure(CudaHostScheduler& scheduler) {
        for (int left = kPatienceMs; left > 0 && scheduler.thread().condition() != SchedulerCondition::kFailed; --left)
            wait_for_bell(bell, 1);
        return scheduler.thread().condition();
    }

    ScriptedRing ring;
    StepWait wait;
    HostEngine tables;
    std::optional<FakeCuda> cuda;
    std::optional<StepArenas> host;  // "pinned"
    int doorbell = eventfd(0, EFD_NONBLOCK);
    int bell = eventfd(0, EFD_NONBLOCK);
};

void check_answer(Bench& bench, uint32_t slot, const std::vector<int32_t>& prompt, uint32_t max_tokens) {
    const std::vector<int32_t> answer = scripted_answer(prompt, max_tokens);
    CHECK(bench.wait_for(slot, SlotState::kDecodeCompleted).generated == answer.size(), "slot %u", slot);
    CHECK(std::equal(answer.begin(), answer.end(), bench.ring.output(slot)), "slot %u: wrong tokens", slot);
}

// Sixty requests for five rows and too few blocks, through the thread.
void test_answers(StepWait wait, Rows rows) {
    Bench bench(wait, rows);
    std::mt19937 random(1);
    std::vector<std::vector<int32_t>> prompts;
    {
        CudaHostScheduler scheduler(bench.ring.memory(), bench.steps(), bench.doorbell, {bench.bell}, 0);
        scheduler.thread().start();
        for (uint32_t slot = 0; slot < 60; ++slot) {
            prompts.push_back(random_prompt(random));
            bench.ring.submit(slot, 1, prompts.back(), 1 + slot % 40);
        }
        scheduler.thread().wake();
        for (uint32_t slot = 0; slot < 60; ++slot) check_answer(bench, slot, prompts[slot], 1 + slot % 40);
        scheduler.thread().stop();
        CHECK(scheduler.thread().condition() == SchedulerCondition::kStopped, "it did not stop");
    }
    const RingHeader& header = *bench.ring.view.header;
    CHECK((header.preemptions > 0) == (rows != Rows::kFixed), "%lu preemptions", header.preemptions);
    CHECK((header.mixed_launches > 0) == (rows == Rows::kMixed), "%lu mixed steps", header.mixed_launches);
    const std::string end = wait == StepWait::kPoll ? "qQ" : "S", plain = "HGD" + end, mixed = "HHGDD" + end;
    std::string_view left = bench.cuda->calls;
    CHECK(left.front() == 'C', "no context");
    left.remove_prefix(1);
    uint64_t steps = 0, mixed_steps = 0;
    for (; !left.empty(); ++steps) {
        const bool both = left.starts_with(mixed);
        CHECK(both || left.starts_with(plain), "calls %s", bench.cuda->calls.c_str());
        left.remove_prefix((both ? mixed : plain).size());
        mixed_steps += both;
    }
    CHECK(steps == header.steps && mixed_steps == header.mixed_launches, "%lu steps, %lu mixed", steps, mixed_steps);
}

// A request for log-probabilities gets them; one copy more where they lie apart from the tokens.
void test_logprobs() {
    Bench bench(StepWait::kSynchronize);
    CudaHostScheduler scheduler(bench.ring.memory(), bench.steps(), bench.doorbell, {bench.bell}, 0);
    bench.ring.submit(0, 1, {5, 6, 7}, 6);
    RequestRecord& record = bench.ring.view.records[0];
    record.logprobs = 3;                // the chosen token's and the best two
    record.logprobs_offset = kContext;  // slot 1's part, which nobody uses
    bench.host->poison_outputs(Phase::kDecode);
    *bench.host->buffers[0].error = 0;
    scheduler.thread().start();
    scheduler.thread().wake();
    check_answer(bench, 0, {5, 6, 7}, 6);
    for (uint32_t i = 0; i < 6; ++i) {
        const int32_t token = bench.ring.output(0)[i];
        float shown[5];
        std::memcpy(shown, bench.ring.output(1) + i * logprob_words(3), sizeof shown);
        CHECK(shown[0] == -static_cast<float>(token) && shown[4] == shown[0] - 1.0f, "token %u", i);
    }
}

// What a sampler keeps with a row is there for the request's next token, and for nobody else's.
void test_kept(StepWait wait) {
    Bench bench(wait);
    CudaHostScheduler scheduler(bench.ring.memory(), bench.steps(), bench.doorbell, {bench.bell}, 0);
    bench.ring.submit(0, 1, {5, 6, 7}, 6);
    bench.ring.submit(1, 1, {8, 9}, 6);
    bench.ring.view.records[0].temperature = 1;
    scheduler.thread().start();
    scheduler.thread().wake();
    check_answer(bench, 0, {5, 6, 7}, 6);
    check_answer(bench, 1, {8, 9}, 6);
    scheduler.thread().stop();
    CHECK((bench.cuda->kept == std::vector<uint32_t>{0, 1, 2, 3, 4, 5}), "%zu tokens", bench.cuda->kept.size());
}

// One random script, step by step: what the scheduler does, whoever runs its graphs.
template <class Pass, class FinishStep>
void play(ScriptedRing& ring, uint32_t seed, Pass pass, FinishStep finish_step) {
    std::mt19937 random(seed);
    uint32_t tickets[16] = {};
    for (uint32_t round = 0; round < 400; ++round) {
        for (uint32_t slot = 0; slot < 16; ++slot) {
            const std::optional<StatusWord> status = ring.accepted(slot, tickets[slot]);
            if (tickets[slot] == 0 || (status && status->state == SlotState::kEmpty)) {
                if (random() % 8 != 0) continue;
                ring.submit(slot, ++tickets[slot], random_prompt(random), 1 + random() % 40);
            } else if (status && status->state == SlotState::kDecodeCompleted) {
                HostPort::store_release(&ring.view.words[slot].release, tickets[slot]);
            } else if (random() % 64 == 0) {
                HostPort::store_release(&ring.view.words[slot].cancel, tickets[slot]);
            }
            for (Outcome outcome = pass(); outcome != Outcome::kBusy && outcome != Outcome::kIdle;) outcome = pass();
        }
        finish_step();
        for (Outcome outcome = pass(); outcome != Outcome::kBusy && outcome != Outcome::kIdle;) outcome = pass();
    }
}

std::vector<TraceEvent> trace_of(const SchedulerState& state) { return {state.trace, state.trace + state.trace_count}; }

void test_trace(StepWait wait, Rows rows) {
    constexpr uint32_t kEvents = 1 << 16;
    Bench bench(wait, rows);
    std::unique_ptr<CudaSteps> steps = bench.steps();
    CudaSteps& driven = *steps;
    CudaHostScheduler scheduler(bench.ring.memory(), std::move(steps), -1, {}, kEvents);
    driven.begin();
    play(
        bench.ring, 3, [&] { return scheduler.thread().pass(); },
        [&] {
            if (!scheduler.thread().state().flight.active) return;
            for (uint32_t asks = wait == StepWait::kPoll ? 2 : 1; asks > 0; --asks) driven.await();
        });

    ScriptedRing ring(1);
    HostEngine tables;
    make_tables(tables, rows);
    ScriptedEngine engine(tables.tables, kRule);
    HostScheduler plain(ring.memory(), tables.tables, {-1, {}}, kEvents);
    play(
        ring, 3, [&] { return plain.pass(); },
        [&] {
            const std::optional<uint32_t> graph = plain.next_launch(0);
            if (!graph) return;
            engine.step(tables.graphs[*graph]);
            plain.complete(tables.graphs[*graph].phase, 0);
        });

    const std::vector<TraceEvent> expected = trace_of(plain.state()), found = trace_of(scheduler.thread().state());
    CHECK(expected.size() > 500 && expected.size() < kEvents, "%zu events", expected.size());
    CHECK(expected.size() == found.size(), "%zu events, not %zu", found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
        CHECK(std::memcmp(&expected[i], &found[i], sizeof(TraceEvent)) == 0, "event %zu differs", i);
    CHECK(std::memcmp(ring.view.output_arenas, bench.ring.view.output_arenas, 4 * ring.view.output_words) == 0,
          "outputs differ");
}

// An error of the engine ends the requests of its step; the next ones do not suffer from it.
void test_engine_error() {
    Bench bench(StepWait::kSynchronize);
    CudaHostScheduler scheduler(bench.ring.memory(), bench.steps(), bench.doorbell, {bench.bell}, 0);
    bench.cuda->step_error = 42;
    bench.ring.submit(0, 1, {5, 6, 7}, 6);
    scheduler.thread().start();
    scheduler.thread().wake();
    CHECK(bench.wait_for(0, SlotState::kDecodeCompleted).reason == Reason::kEngineError, "slot 0");
    CHECK(bench.ring.view.header->error == 42, "the error is not shown");
    bench.ring.submit(1, 1, {8, 9}, 20);
    scheduler.thread().wake();
    check_answer(bench, 1, {8, 9}, 20);
    CHECK(scheduler.thread().condition() == SchedulerCondition::kRunning, "it does not run");
}

// An error of a mixed step ends the requests of both its parts, whichever word tells it.
void test_mixed_engine_error() {
    Bench bench(StepWait::kSynchronize, Rows::kMixed);
    std::unique_ptr<CudaSteps> steps = bench.steps();
    CudaSteps& driven = *steps;
    CudaHostScheduler scheduler(bench.ring.memory(), std::move(steps), -1, {}, 0);
    const auto pass = [&] {
        Outcome outcome = Outcome::kProgress;
        while (outcome == Outcome::kProgress || outcome == Outcome::kRelaunch) outcome = scheduler.thread().pass();
        return outcome;
    };
    driven.begin();
    bench.ring.submit(0, 1, {5, 6, 7}, 50);
    pass();
    bench.ring.submit(1, 1, {8, 9}, 50);
    pass();  // claims it while the prefill of the other runs
    for (; bench.ring.view.header->mixed_launches == 0; pass()) driven.await();
    bench.cuda->step_error = 42;
    driven.await();
    CHECK(pass() == Outcome::kIdle, "it goes on");
    const uint32_t generated[] = {2, 0};
    for (const uint32_t slot : {0u, 1u}) {
        const StatusWord status = bench.wait_for(slot, SlotState::kDecodeCompleted);
        CHECK(status.reason == Reason::kEngineError && status.generated == generated[slot],
              "slot %u: reason %u, %u tokens", slot, static_cast<unsigned>(status.reason), status.generated);
    }
    CHECK(bench.ring.view.header->error == 42, "the error is not shown");
    bench.ring.submit(2, 1, {8, 9}, 20);
    while (pass() == Outcome::kBusy) driven.await();
    check_answer(bench, 2, {8, 9}, 20);
}

// Any call of the driver that fails ends the requests on rows, and the scheduler, with its number.
void test_driver_error(StepWait wait, char call, uint32_t after) {
    Bench bench(wait);
    CudaHostScheduler scheduler(bench.ring.memory(), bench.steps(), bench.doorbell, {bench.bell}, 0);
    bench.cuda->failing = call;
    bench.cuda->after = after;
    bench.ring.submit(0, 1, {5, 6, 7}, 50);
    bench.ring.submit(1, 1, {8, 9}, 50);
    scheduler.thread().start();
    scheduler.thread().wake();
    CHECK(bench.wait_for_failure(scheduler) == SchedulerCondition::kFailed, "call %c does not fail", call);
    CHECK(bench.ring.view.header->error == 700, "call %c: error %u", call, bench.ring.view.header->error);
    if (call == 'C') return;  // it has failed before anything was claimed
    for (const uint32_t slot : {0u, 1u}) {
        const StatusWord status = bench.wait_for(slot, SlotState::kDecodeCompleted);
        CHECK(status.reason == Reason::kEngineError && status.generated == after, "call %c, slot %u: %u tokens", call,
              slot, status.generated);
    }
}

void test_joined_copies() {
    HostEngine tables;
    make_tables(tables, Rows::kMovable);
    StepArenas device(tables.tables), host(tables.tables);
    const GraphKey key{Phase::kDecode, 3, 3};
    const StepCopies joined = plan_copies(key, tables.tables.max_blocks, device.buffers[0], host.buffers[0]);
    CHECK(joined.inputs.size() == 1 && joined.tokens.size() == 1 && joined.outputs.size() == 1, "not joined");
    const auto end_of_tables =
        reinterpret_cast<uint64_t>(device.buffers[0].block_tables + 3 * tables.tables.max_blocks);
    CHECK(joined.inputs[0].device + joined.inputs[0].bytes == end_of_tables, "it copies rows that no graph reads");
    CHECK(joined.tokens[0].bytes == 4 * (1 + 3), "it copies more than tokens");
    const StepCopies apart = plan_copies(key, tables.tables.max_blocks, tables.tables.buffers[0], host.buffers[0]);
    CHECK(apart.inputs.size() == 7 && apart.tokens.size() == 2 && apart.outputs.size() == 5, "wrongly joined");
}

void test_wrong_number_of_graphs() {
    Bench bench(StepWait::kPoll);
    bool refused = false;
    try {
        CudaSteps(FakeCuda::driver(), nullptr, nullptr, {1}, bench.tables.tables, bench.cuda->arenas.buffers,
                  bench.host->buffers, StepWait::kPoll);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    CHECK(refused, "one graph for two keys");
}

}  // namespace

int main() {
    for (const StepWait wait : {StepWait::kSynchronize, StepWait::kPoll}) {
        for (const Rows rows : {Rows::kFixed, Rows::kMovable, Rows::kMixed}) {
            test_answers(wait, rows);
            test_trace(wait, rows);
        }
        for (const char call : {'H', 'G', 'D', wait == StepWait::kPoll ? 'Q' : 'S'})
            for (const uint32_t after : {0u, 7u}) test_driver_error(wait, call, after);
        test_driver_error(wait, 'C', 0);
        test_kept(wait);
    }
    test_logprobs();
    test_engine_error();
    test_mixed_engine_error();
    test_joined_copies();
    test_wrong_number_of_graphs();
    std::puts("answers, traces and failures are right");
}
