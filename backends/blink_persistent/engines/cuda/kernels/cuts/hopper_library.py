"""How many rows the library multiplies on an H200: more than a step has where that takes less time.

cuBLAS goes by the number of rows when it chooses a kernel, and for some numbers it does not choose
well: of Llama-3-8B's gate and up 448 rows took 272 us, and 456 rows 152. The table was measured
with PyTorch 2.11.0 and CUDA 13.0 (`engine/library-rows.log` of tests/bench/results/gpu-2026-11-30).
Another version may choose otherwise; then a product takes as much longer as it has more rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from blink_persistent.engines.cuda.kernels.cuts.choices import PaddedRows

WORTH = 0.9  # of the time that the rows alone take, at most
WORTH_US = 3.0  # less, at least: what is short differs by more from one run to the next
AS_GOOD = 1.01  # of the least time


def faster_rows(us: Mapping[int, float]) -> dict[int, int]:
    """The rows for which more are worth it, and the fewest that are `AS_GOOD` as the best of those.

    `us`: microseconds of a product by its rows.
    """
    measured, found = sorted(us.items()), {}
    for number, (rows, alone) in enumerate(measured):
        least = min(time for _, time in measured[number:])
        if least <= min(WORTH * alone, alone - WORTH_US):
            found[rows] = next(more for more, time in measured[number:] if time <= AS_GOOD * least)
    return found


HOPPER_ROWS: PaddedRows = {
    (6144, 4096): {
        176: 200,
        184: 200,
        192: 200,
        224: 248,
        232: 248,
        272: 280,
        320: 328,
        400: 408,
        1088: 1104,
        1568: 1648,
    },
    (4096, 4096): {
        160: 184,
        272: 344,
        288: 344,
        328: 344,
        336: 344,
        352: 368,
        360: 368,
        400: 408,
        416: 432,
        424: 432,
        832: 840,
        896: 904,
        928: 936,
        1088: 1136,
        1312: 1328,
        1344: 1360,
        1376: 1392,
        1600: 1648,
    },
    (28672, 4096): {400: 408, 440: 456, 448: 456, 552: 560},
    (4096, 14336): {288: 304, 544: 552, 832: 840, 896: 920, 1088: 1104, 1344: 1360, 1376: 1392},
    (7680, 5120): {672: 680, 800: 824, 832: 840, 1360: 1408, 1376: 1408, 1856: 1872},
    (5120, 5120): {
        320: 328,
        640: 648,
        832: 840,
        1032: 1048,
        1040: 1048,
        1344: 1392,
        1408: 1424,
        1824: 1872,
        1856: 1872,
    },
    (35840, 5120): {192: 200},
    (5120, 17920): {
        640: 648,
        832: 840,
        1032: 1048,
        1040: 1048,
        1344: 1456,
        1408: 1456,
        1824: 1872,
        1856: 1872,
    },
    (10240, 5120): {144: 152, 320: 328, 832: 848, 1032: 1072, 1040: 1072, 1856: 1872},
    (5120, 8192): {
        72: 120,
        80: 120,
        88: 120,
        96: 120,
        104: 120,
        112: 120,
        248: 264,
        320: 328,
        640: 648,
        832: 840,
        1032: 1048,
        1040: 1048,
        1344: 1424,
        1376: 1424,
        1408: 1424,
        1824: 1840,
        1856: 1872,
    },
    (51200, 5120): {72: 88, 80: 88, 400: 408, 544: 552, 704: 712, 1184: 1200},
    (5120, 25600): {640: 648, 832: 896, 1032: 1048, 1040: 1048, 1344: 1424, 1408: 1424, 1856: 1872},
    (5120, 2048): {
        832: 840,
        1032: 1048,
        1040: 1048,
        1344: 1424,
        1408: 1424,
        1760: 1776,
        1856: 1872,
    },
    (2048, 4096): {
        400: 408,
        528: 536,
        576: 696,
        592: 696,
        608: 696,
        656: 696,
        688: 696,
        704: 728,
        720: 728,
        736: 768,
        800: 824,
        840: 880,
        1040: 1048,
        1056: 1064,
        1600: 1616,
        1664: 1680,
        1728: 1744,
    },
}
"""By weights' shapes: Llama-3-8B's four, Phi-4's, Qwen3-32B's, Qwen3-30B-A3B's two.

`tests/bench/gpu/library_rows.py` prints its lines. Other numbers of rows are multiplied as they
are.
"""


def measured_rows(capability: tuple[int, int]) -> PaddedRows:
    """For a GPU of that compute capability."""
    return HOPPER_ROWS if capability == (9, 0) else {}
