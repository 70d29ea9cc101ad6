"""What the learned ranker sees of a problem, a schedule and the analytic model's view of both. Pure Python."""

from __future__ import annotations

import math
from array import array

from ..space import DTYPE_BYTES, GEMV, PINGPONG, Device, Problem, Schedule, ceil_div, kernel_extents
from .analytic import Terms, odd_columns

FEATURES = (
    # the problem
    "log_m",
    "log_n",
    "log_k",
    "a_k_major",
    "b_k_major",
    "log_floor",
    # the analytic model
    "log_excess",
    "tensor_share",
    "ring_share",
    "intake_share",
    "l2_share",
    "dram_share",
    "epilogue_share",
    "fixed_share",
    "clock",
    "log_waves",
    "wave_waste",
    "log_traffic",
    "padding",
    # the schedule
    "pingpong",
    "consumers",
    "tile_m",
    "tile_n",
    "tile_k",
    "log_area",
    "log_aspect",
    "odd_n",
    "stages",
    "mma_in_flight",
    "in_flight_bytes",
    "cluster_m",
    "cluster_n",
    "persistent",
    "capped",
    "raster_n",
    "log_swizzle",
    "serpentine",
    "k_zigzag",
    "accumulators",
    "consumer_regs",
    "direct",
    "epilogue_n",
    "epilogue_buffers",
    "swap_ab",
    "split_k",
    "stream_k",
    "slots",
    "atomic",
    "evict_a",
    "evict_b",
    "waits_late",
    "loads_weights_early",
    "log_k_blocks",
    "ctas_per_sm",
    "l2_promotion",
    "leader",
    "clip_boxes",
    "shares",
    "gemv",
    "log_batch",
    "element_bytes",
    "odd_columns",
)
"""The names, in the order of `features`."""


def features(problem: Problem, s: Schedule, device: Device, terms: Terms, floor: float) -> list[float]:
    """The features in single precision, which is what scikit-learn's trees see.

    `terms` is `analyse` of the two, `floor` is `floor_us` of the problem.
    """
    total = terms.total_us
    rows, columns = kernel_extents(problem, s)
    covered = ceil_div(rows, s.tile_m) * s.tile_m * ceil_div(columns, s.tile_n) * s.tile_n
    stage_bytes = (s.tile_m + s.tile_n) * s.tile_k * DTYPE_BYTES[problem.dtype]
    values = (
        math.log2(problem.m),
        math.log2(problem.n),
        math.log2(problem.k),
        problem.a_major == "k",
        problem.b_major == "k",
        math.log(floor),
        math.log(total / floor),
        terms.tensor_us / total,
        terms.ring_us / total,
        terms.intake_us / total,
        terms.l2_us / total,
        terms.dram_us / total,
        terms.epilogue_us / total,
        terms.fixed_us / total,
        terms.clock_mhz,
        math.log2(terms.waves),
        terms.rounds / terms.waves,
        math.log(terms.traffic / problem.bytes),
        covered / (rows * columns),
        s.arrangement == PINGPONG,
        s.consumers,
        s.tile_m,
        s.tile_n,
        s.tile_k,
        math.log2(s.tile_m * s.tile_n),
        math.log2(s.tile_m / s.tile_n),
        s.tile_n % 16 == 8,
        s.stages,
        s.mma_in_flight,
        s.stages * stage_bytes,
        s.cluster_m,
        s.cluster_n,
        s.persistent,
        s.ctas > 0,
        s.raster == "n",
        math.log2(s.swizzle),
        s.serpentine,
        s.k_zigzag,
        s.accumulators,
        s.consumer_regs,
        s.store == "direct",
        s.epilogue_n,
        s.epilogue_buffers,
        s.swap_ab,
        s.split_k,
        s.stream_k,
        s.reduction == "slots",
        s.reduction == "atomic",
        s.evict_first == "a",
        s.evict_first == "b",
        s.dependent_launch != "",
        s.dependent_launch == "weights",
        math.log2(terms.k_blocks),
        terms.ctas_per_sm,
        s.l2_promotion,
        s.multicast_kind == "leader",
        s.clip_boxes,
        s.reduction == "shares",
        s.arrangement == GEMV,
        math.log2(problem.batch),
        DTYPE_BYTES[problem.dtype],
        odd_columns(problem, s),
    )
    return array("f", values).tolist()
