"""How much KV memory a version on a GPU takes."""

from __future__ import annotations

from blink_server.backend import ModelVersion
from blink_server.errors import MemoryRefused


def memory_budget(version: ModelVersion, free: int, total: int) -> int:
    """The bytes of a device that a version may take: its share of all, no more than are free."""
    share: float = version.config["limits"].get("memory_fraction", 0.9)
    return min(int(share * total), free)


def fitting_blocks(*, fixed: int, block_bytes: int, least: int, budget: int) -> int:
    """The blocks that `budget` bytes leave room for beside `fixed` bytes; the null block is one.

    Raises MemoryRefused where they are fewer than `least`.
    """
    fits = (budget - fixed) // block_bytes
    if least > fits:
        raise MemoryRefused(
            f"memory: {fixed + least * block_bytes} bytes are needed, the version's share of what "
            f"the device has left is {budget}"
        )
    return fits
