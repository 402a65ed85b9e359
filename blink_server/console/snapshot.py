"""The state that the console shows, as plain JSON, and what of it has changed.

    server      that of the catalog, or UNAVAILABLE where no version serves that ought to
    models      {"name:1": {"epoch", "state", "reason", "aliases", "serves"}}
    rings       {"name:1": {"slots", "per_range", "cells": {slot: [state, ticket, tokens, since]}}}
    schedulers  {"name:1": the numbers of `SchedulerStats`}
    graphs      {"name:1": {"phase:sequences:tokens:rows": launches}}; rows only of mixed ones
    latencies   those of `RecentLatencies`, of all models together; the feed adds them

Version 0 stands for a model that has none; its reason says why. `state` of a slot is its place in
`SLOT_STATES`, `since` when its request was claimed, in seconds since 1970; empty slots are left
out. Nothing here says anything of texts.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from blink_server.backend import GraphLaunches, SchedulerStats, SlotTable
from blink_server.http.model_entry import ServerState
from blink_server.http.models import ModelDirectory

State = dict[str, Any]


def snapshot(directory: ModelDirectory, before: State) -> State:
    """Everything as of now. `before`: the state before, so that times do not flicker."""
    rings = before.get("rings", {})
    state: State = {
        "server": _server(directory),
        "models": {},
        "rings": {},
        "schedulers": {},
        "graphs": {},
    }
    for entry in (*directory.entries, *directory.without_version):
        name = entry.version.key
        state["models"][name] = {
            "epoch": entry.epoch,
            "state": str(entry.state),
            "reason": entry.reason,
            "aliases": list(entry.aliases),
            "serves": entry.serves,
        }
        table, stats = entry.slots(), entry.stats()
        if table is not None:
            state["rings"][name] = _ring(table, rings.get(name, {}).get("cells", {}))
        if stats is not None:
            state["schedulers"][name] = _scheduler(stats)
            state["graphs"][name] = {_graph_key(graph): graph.launches for graph in stats.graphs}
    return state


def _server(directory: ModelDirectory) -> str:
    entries, server = directory.entries, directory.server
    if server is ServerState.READY and entries and not any(entry.serves for entry in entries):
        return "UNAVAILABLE"
    return str(server)


def _graph_key(graph: GraphLaunches) -> str:
    key = f"{graph.phase}:{graph.sequences}:{graph.tokens}"
    return f"{key}:{graph.rows}" if graph.rows else key


def _ring(table: SlotTable, before: State) -> State:
    used = np.flatnonzero(table.states)
    columns = (
        table.states[used].tolist(),
        table.tickets[used].tolist(),
        table.generated[used].tolist(),
        np.round(time.time() - table.ages[used], 1).tolist(),
    )
    cells = {}
    for slot, *cell in zip(map(str, used.tolist()), *columns, strict=True):
        known = before.get(slot)
        if known is not None and known[1] == cell[1]:
            cell[3] = known[3]
        cells[slot] = cell
    return {"slots": len(table.states), "per_range": table.slots_per_range, "cells": cells}


def _scheduler(stats: SchedulerStats) -> State:
    numbers = asdict(stats)
    del numbers["graphs"]
    return numbers


def changes(before: State, after: State) -> State:
    """What makes `before` into `after`: merged key by key, where null takes a key away.

    Objects are compared in depth; anything else is replaced as a whole.
    """
    changed: State = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            deeper = changes(old, value)
            if deeper:
                changed[key] = deeper
        elif value != old:
            changed[key] = value
    return changed
