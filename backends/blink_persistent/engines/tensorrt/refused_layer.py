"""Which layer of a plan enqueued a node of a captured graph, as far as names tell."""

from __future__ import annotations

from collections.abc import Sequence


def tell_layer(nodes: Sequence[str], place: int, layers: Sequence[tuple[str, str]]) -> str:
    """For a message: "; enqueued by the layer ..." for the node at `place`.

    `nodes`: what each node of the graph is, a kernel by its name, in the order in which they were
    enqueued. `layers`: of each of the plan's layers its name and its tactic's, which kernels are
    called by or after, in the order in which they run. "" where nothing tells.
    """
    at, found = 0, -1
    for name in nodes[: place + 1]:
        ahead = [i for i in range(at, len(layers)) if _runs(layers[i][1], name)]
        found = ahead[0] if ahead else -1
        at = max(at, found)
    if found >= 0:
        return f"; enqueued by the layer {layers[found][0]!r}"
    return f"; enqueued by the layer {layers[at][0]!r} or one soon after it" if layers else ""


def _runs(tactic: str, node: str) -> bool:
    """Is the node a kernel of the tactic?"""
    return bool(tactic) and (tactic in node or (len(node) > 3 and node in tactic))
