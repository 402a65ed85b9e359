// The native module's binding of graphs on a GPU that a host drives (port_cuda_host.h).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "blink/host_scheduler.h"
#include "blink/port_cuda_host.h"
#include "blink/ring_host.h"
#include "native_trace.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace blink;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
constexpr size_t kDriverCalls = sizeof(CudaDriver) / sizeof(void*);
constexpr size_t kBufferFields = sizeof(PhaseBuffers) / sizeof(void*);
using Buffers = std::array<std::array<uint64_t, kBufferFields>, kPhases>;

void read_buffers(PhaseBuffers (&to)[kPhases], const Buffers& addresses) {
    static_assert(sizeof to == sizeof addresses);
    std::memcpy(to, addresses.data(), sizeof to);
}

// Owns what it is given by value; the ring's memory and the engine outlive it.
class HostDrivenScheduler : public CudaHostScheduler {
  public:
    HostDrivenScheduler(Bytes ring, const HostEngine& engine, const std::array<uint64_t, kDriverCalls>& driver,
                        uint64_t context, uint64_t stream, const std::vector<uint64_t>& graphs, const Buffers& device,
                        const Buffers& host, bool polls, int doorbell, std::vector<int> notify, uint32_t trace_capacity)
        : CudaHostScheduler(attach_ring(ring.data(), ring.size()).header,
                            make_steps(engine, driver, context, stream, graphs, device, host, polls), doorbell,
                            std::move(notify), trace_capacity) {}

  private:
    static std::unique_ptr<CudaSteps> make_steps(const HostEngine& engine,
                                                 const std::array<uint64_t, kDriverCalls>& driver, uint64_t context,
                                                 uint64_t stream, const std::vector<uint64_t>& graphs,
                                                 const Buffers& device, const Buffers& host, bool polls) {
        CudaDriver calls;
        static_assert(sizeof calls == sizeof driver);
        std::memcpy(&calls, driver.data(), sizeof calls);
        PhaseBuffers on_device[kPhases], on_host[kPhases];
        read_buffers(on_device, device);
        read_buffers(on_host, host);
        return std::make_unique<CudaSteps>(calls, reinterpret_cast<void*>(context), reinterpret_cast<void*>(stream),
                                           graphs, engine.tables, on_device, on_host,
                                           polls ? StepWait::kPoll : StepWait::kSynchronize);
    }
};

}  // namespace

void bind_host_driven(nb::module_& m) {
    m.def(
        "cuda_calls",
        [] {
            return std::vector<std::string>{"cuCtxSetCurrent", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
                                            "cuGraphLaunch",   "cuStreamQuery",     "cuStreamSynchronize"};
        },
        "The driver's functions that HostDrivenScheduler needs, in its order.");
    nb::class_<HostDrivenScheduler>(m, "HostDrivenScheduler")
        .def(nb::init<Bytes, const HostEngine&, const std::array<uint64_t, kDriverCalls>&, uint64_t, uint64_t,
                      const std::vector<uint64_t>&, const Buffers&, const Buffers&, bool, int, std::vector<int>,
                      uint32_t>(),
             "ring"_a, "engine"_a, nb::kw_only(), "driver"_a, "context"_a, "stream"_a, "graphs"_a, "device_buffers"_a,
             "host_buffers"_a, "polls"_a, "doorbell"_a, "notify"_a, "trace_capacity"_a = 0, nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 3>(),
             "A scheduler over a ring in host memory and an engine's graphs on a GPU. `driver` has the addresses of\n"
             "the functions that `cuda_calls` names; the buffers are a PhaseBuffers's addresses for each phase.")
        .def("start", [](HostDrivenScheduler& s) { s.thread().start(); })
        .def(
            "stop", [](HostDrivenScheduler& s) { s.thread().stop(); }, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "command",
            [](HostDrivenScheduler& s, uint32_t command) { s.thread().command(static_cast<Command>(command)); },
            "command"_a)
        .def("close", [](HostDrivenScheduler& s) { s.thread().close(); })
        .def("condition", [](HostDrivenScheduler& s) { return static_cast<uint32_t>(s.thread().condition()); })
        .def(
            "drain_trace", [](HostDrivenScheduler& s) { return drain_trace(s.thread().state()); },
            "Events since the last call; not while the thread runs.");
}
