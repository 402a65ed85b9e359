"""pyverbs: imported when it is first needed, and checked."""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

from blink_server.errors import Unavailable

OLDEST, NEWEST = 44, 59  # of rdma-core; its private symbols have pyverbs N need rdma-core N
_LIBRARY = re.compile(r"libibverbs\.so\.1\.\d+\.(\d+)\.\d+$")
_NAMES = {
    "addr": ("AHAttr", "GID", "GlobalRoute"),
    "cq": ("CQ", "CompChannel"),
    "device": ("Context",),
    "mr": ("MR", "DmaBufMR"),
    "pd": ("PD",),
    "qp": ("QP", "QPAttr", "QPCap", "QPInitAttr"),
    "wr": ("SGE", "RecvWR", "SendWR"),
    "pyverbs_error": ("PyverbsError",),
}


@cache
def verbs() -> SimpleNamespace:
    """What this package uses of pyverbs: its classes by name, and `e`, the module of constants.

    Raises Unavailable naming the package, and the rdma-core that it must match.
    """
    try:
        found = {
            name: getattr(importlib.import_module(f"pyverbs.{module}"), name)
            for module, names in _NAMES.items()
            for name in names
        }
        constants = _constants()
    except ImportError as error:
        raise Unavailable(_advice(str(error), _loaded_library())) from error
    check_version(_installed(), _loaded_library())
    return SimpleNamespace(**found, e=constants)


def check_version(pyverbs: int | None, rdma_core: int | None) -> None:
    """Raises Unavailable for versions that are not known to work; None is one that is not known."""
    for found in (pyverbs, rdma_core):
        if found is not None and not OLDEST <= found <= NEWEST:
            raise Unavailable(_advice(f"version {found} was found", rdma_core))
    if pyverbs is not None and rdma_core is not None and pyverbs != rdma_core:
        raise Unavailable(_advice(f"pyverbs {pyverbs} was found", rdma_core))


def _advice(fault: str, rdma_core: int | None) -> str:
    exact = f"{rdma_core}, as rdma-core here" if rdma_core else "the version of rdma-core here"
    return (
        f"RDMA needs the package pyverbs (Debian: python3-pyverbs), {OLDEST} to {NEWEST} "
        f"and exactly {exact}: {fault}"
    )


def _constants() -> object:
    try:
        return importlib.import_module("pyverbs.libibverbs_enums")
    except ImportError:  # its name up to version 52
        return importlib.import_module("pyverbs.enums")


def _installed() -> int | None:
    """Major version of a pyverbs that pip has installed; distributions' leave no metadata."""
    try:
        return int(version("pyverbs").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return None


def _loaded_library() -> int | None:
    """The rdma-core version in the name of the libibverbs that this process has mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := _LIBRARY.search(line):
            return int(found[1])
    return None
