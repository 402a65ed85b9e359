"""The sampler `default`: greedy or drawn, filters, penalties, bias, log-probabilities.

The host implementation is `sampler_host.h`, the device one `sampler_block.h`. Random numbers are
Philox4x32-10 with the seed as key and the token's position as counter.
"""

from __future__ import annotations

from blink_persistent import _native
from blink_persistent.engines import DeviceSampling, HostSampling
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.structs import EngineTables
from blink_persistent.samplers.default_cuda import DeviceSampler


class DefaultSampler:
    """Fulfils `Sampler`."""

    def host(self, engine: _native.HostEngine) -> HostSampling:
        """The native sampler over the engine's sampling rows."""
        sampler: HostSampling = _native.HostSampler(engine)
        return sampler

    def device(self, gpu: Gpu, tables: EngineTables, logits: int) -> DeviceSampling:
        """The kernel of sampler_gpu.cu. Raises ValueError for too large a vocabulary."""
        return DeviceSampler(gpu, tables, logits)
