// What attention may read only once the kernel ahead has ended, on a host: for tests.
#pragma once

#include "attention_call.h"
#include "lanes_host.h"

namespace blink {

// What is published to a block: the rows' projection, and what other blocks leave of so many heads.
inline std::vector<Range> published_to_attention(const AttentionCall& a, size_t head_dim, size_t left) {
    const size_t width = head_dim * (a.heads + 2 * a.kv_heads);
    std::vector<Range> found = {{a.partial, sizeof(float) * left * head_dim}, {a.log_sums, sizeof(float) * left}};
    if (a.rounded != nullptr) {
        found.push_back({a.rounded, sizeof(uint16_t) * a.rows * width});
        return found;
    }
    for (uint32_t part = 0; part < a.parts; ++part)
        found.push_back({a.qkv + part * a.part_rows * width, sizeof(float) * a.rows * width});
    return found;
}

}  // namespace blink
