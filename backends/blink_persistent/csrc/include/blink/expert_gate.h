// Gate and up, with SwiGLU, of the experts that serve a step's only token: primed_product.h, but that
// a block has to know its expert before it asks for weights.
#pragma once

#include "expert_choice.h"
#include "primed_product.h"

namespace blink {

// A port whose blocks are those of one expert.
template <class Port>
class OneExpert : public Port {
  public:
    BLINK_DEV OneExpert(const Port& port, uint32_t blocks) : Port(port), blocks_(blocks) {}
    BLINK_DEV uint32_t block() const { return Port::block() % blocks_; }

  private:
    uint32_t blocks_;
};

template <class Port, uint32_t kWarps, uint32_t kWindows, uint32_t kStages>
class ExpertGate {
  public:
    using Kernel = PrimedProduct<OneExpert<Port>, kWarps, 1, 1, kWindows, kStages, true, uint16_t>;
    static constexpr uint32_t kSharedBytes = Kernel::kSharedBytes;

    // The next kernel is let in behind this one's wait: expert_sum.h relies on it.
    BLINK_DEV static void run(Port& port, const ExpertCall& call) {
        const uint32_t place = port.block() / call.blocks;
        port.await_previous();
        const uint64_t expert = choose_expert(port, call, place, Kernel::kThreads).expert;
        const Product product{
            call.x,
            call.weight + expert * 2 * call.size * call.depth,
            static_cast<uint16_t*>(call.out) + place * call.size,
            1,
            call.size,
            call.depth,
            call.depth,
            call.blocks,
        };
        OneExpert<Port> own(port, call.blocks);
        Kernel(own, product).run();
    }
};

}  // namespace blink
