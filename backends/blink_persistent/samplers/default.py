"""The sampler `default`: greedy or drawn, filters, penalties, bias, log-probabilities.

The host implementation is `sampler_host.h`. Random numbers are Philox4x32-10 with the seed as key
and the token's position as counter.
"""

from __future__ import annotations

from blink_persistent import _native
from blink_persistent.engines import HostSampling


class DefaultSampler:
    """Fulfils `Sampler`."""

    def host(self, engine: _native.HostEngine) -> HostSampling:
        """The native sampler over the engine's sampling rows."""
        sampler: HostSampling = _native.HostSampler(engine)
        return sampler
