// All layers of a decode step in one kernel (layers_step.h), whose blocks have to run at once. A text
// before this one defines BLINK_LAYERS as one BLINK_LAYERS_KERNEL for each way of cutting.
#include "blink/layers_gpu.h"
#include "blink/layers_step.h"

// Registers are left for so many threads of another block: a resident scheduler's.
#define BLINK_BESIDE 256

#define BLINK_LAYERS_KERNEL(NAME, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(blink::LayersCut<__VA_ARGS__>::kThreads + BLINK_BESIDE, 1)      \
        NAME(const __grid_constant__ blink::LayerMaps<blink::TensorMap> inputs, const blink::TensorMap* weights, \
             const blink::TensorMap* pages, const __grid_constant__ blink::LayersCall call) {                    \
        blink::GpuLayers port(blink_shared, call);                                                               \
        blink::Layers<blink::GpuLayers, blink::LayersCut<__VA_ARGS__>>::run(port, call, weights, pages, inputs); \
    }

extern __shared__ __align__(1024) unsigned char blink_shared[];

BLINK_LAYERS
