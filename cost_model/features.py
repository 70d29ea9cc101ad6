"""What the learned ranker sees of a problem, a schedule and the analytic model's view of both. Pure Python."""

from __future__ import annotations

import math

from ..space import DTYPE_BYTES, GEMV, PINGPONG, Problem, Schedule, ceil_div, kernel_extents, tile_grid
from .analytic import Terms, misaligned, odd_columns, read_once, straddles

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
    "interleave_k",
    "early_fill",
    "rotate",
    "straight_start",
    "misaligned",
    "straddling",
    "hint",
    "l2_per_dram",
    "exchange_in_ring",
    "held_blocks",
    "parts_apart",
    "alone_stages",
    "log_hands",
)
"""The names, in the order of `features`, in which trees number them."""


def features(problem: Problem, s: Schedule, terms: Terms, floor: float) -> list[float]:
    """All features. `terms` is `analyse` of the two, `floor` is `floor_us` of the problem."""
    values = of_problem(problem, floor) | of_schedule(s) | of_both(problem, s, terms, floor)
    return [values[name] for name in FEATURES]


def of_problem(problem: Problem, floor: float) -> dict[str, float]:
    """Those that are the same for all schedules."""
    return {
        "log_m": math.log2(problem.m),
        "log_n": math.log2(problem.n),
        "log_k": math.log2(problem.k),
        "log_batch": math.log2(problem.batch),
        "a_k_major": problem.a_major == "k",
        "b_k_major": problem.b_major == "k",
        "element_bytes": DTYPE_BYTES[problem.dtype],
        "misaligned": misaligned(problem, "a") + misaligned(problem, "b"),
        "log_floor": math.log(floor),
    }


def of_schedule(s: Schedule) -> dict[str, float]:
    """Those that are the same for all problems."""
    return {
        "gemv": s.arrangement == GEMV,
        "pingpong": s.arrangement == PINGPONG,
        "consumers": s.consumers,
        "tile_m": s.tile_m,
        "tile_n": s.tile_n,
        "tile_k": s.tile_k,
        "log_area": math.log2(s.tile_m * s.tile_n),
        "log_aspect": math.log2(s.tile_m / s.tile_n),
        "odd_n": s.tile_n % 16 == 8,
        "stages": s.stages,
        "mma_in_flight": s.mma_in_flight,
        "cluster_m": s.cluster_m,
        "cluster_n": s.cluster_n,
        "leader": s.multicast_kind == "leader",
        "rotate": s.multicast_kind == "rotate",
        "persistent": s.persistent,
        "capped": s.ctas > 0,
        "raster_n": s.raster == "n",
        "log_swizzle": math.log2(s.swizzle),
        "serpentine": s.serpentine,
        "k_zigzag": s.k_zigzag,
        "accumulators": s.accumulators,
        "consumer_regs": s.consumer_regs,
        "direct": s.store == "direct",
        "epilogue_n": s.epilogue_n,
        "epilogue_buffers": s.epilogue_buffers,
        "swap_ab": s.swap_ab,
        "split_k": s.split_k,
        "interleave_k": s.interleave_k,
        "exchange_in_ring": s.exchange_in_ring,
        "held_blocks": s.held_blocks,
        "parts_apart": s.parts_apart,
        "log_hands": math.log2(s.hands),
        "stream_k": s.stream_k,
        "slots": s.reduction == "slots",
        "atomic": s.reduction == "atomic",
        "shares": s.reduction == "shares",
        "evict_a": s.evict_first == "a",
        "evict_b": s.evict_first == "b",
        "l2_promotion": s.l2_promotion,
        "waits_late": s.dependent_launch != "",
        "loads_weights_early": s.dependent_launch == "weights",
        "clip_boxes": s.clip_boxes,
        "straight_start": s.straight_start,
        "early_fill": s.early_fill,
        "alone_stages": s.alone_stages,
    }


def of_both(problem: Problem, s: Schedule, terms: Terms, floor: float) -> dict[str, float]:
    """The others, which are the analytic model's or join a problem and a schedule."""
    total = terms.total_us
    rows, columns = kernel_extents(problem, s)
    covered = ceil_div(rows, s.tile_m) * s.tile_m * ceil_div(columns, s.tile_n) * s.tile_n
    return {
        "log_excess": math.log(total / floor),
        "tensor_share": terms.tensor_us / total,
        "ring_share": terms.ring_us / total,
        "intake_share": terms.intake_us / total,
        "l2_share": terms.l2_us / total,
        "dram_share": terms.dram_us / total,
        "epilogue_share": terms.epilogue_us / total,
        "fixed_share": terms.fixed_us / total,
        "l2_per_dram": math.log(terms.l2_us / terms.dram_us),
        "clock": terms.clock_mhz,
        "log_waves": math.log2(terms.waves),
        "wave_waste": terms.rounds / terms.waves,
        "log_k_blocks": math.log2(terms.k_blocks),
        "ctas_per_sm": terms.ctas_per_sm,
        "log_traffic": math.log(terms.traffic / problem.bytes),
        "padding": covered / (rows * columns),
        "in_flight_bytes": s.stages * ((s.tile_m + s.tile_n) * s.tile_k * DTYPE_BYTES[problem.dtype]),
        "odd_columns": odd_columns(problem, s),
        "straddling": straddles(problem, s, "a") + straddles(problem, s, "b"),
        "hint": (1 if s.evict_first == read_once(tile_grid(problem, s), s) else -1) if s.evict_first else 0,
    }
