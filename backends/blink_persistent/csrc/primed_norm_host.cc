// The kernel of primed_norm.h on a host, for tests, row after row. A text before this one defines
// BLINK_WARPS and BLINK_EACH.
#include "blink/lanes_host.h"
#include "blink/primed_norm.h"

using blink::Faults, blink::HostBlock, blink::HostLanes, blink::NormCall;
using Kernel = blink::PrimedNorm<HostLanes, BLINK_WARPS, BLINK_EACH>;

extern "C" int blink_norm(const NormCall* n, uint32_t seed, Faults* faults) {
    const size_t floats = sizeof(float) * n->rows * n->size;
    for (uint32_t row = 0; row < n->rows; ++row) {
        HostBlock block(row, BLINK_WARPS, Kernel::kSharedBytes, false, seed + row);
        block.published = {{n->delta, n->parts * floats}, {n->residual, floats}};
        if (!block.run([&](HostLanes& lanes) { Kernel(lanes, *n).run(); })) return 1;
        faults->add(block.faults);
    }
    return 0;
}
