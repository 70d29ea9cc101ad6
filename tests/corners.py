"""Corners of the space where kernels are full, or were once beyond what the compiler does well: what the audit must
accept, and a GPU compute right."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from tileseek.space import H200, Problem, Schedule, nearest, sample

WIDEST = 256
"""Of `tile_n`: the nearest that the registers of a consumer leave."""
IN_SLOTS = {"stream_k": False, "split_k": 2, "reduction": "slots"}

CORNERS: Mapping[str, tuple[Problem, Mapping[str, Any]]] = {
    "copied": (Problem(2001, 1003, 1005, layout="tn"), {"arrangement": "coop", "consumers": 2}),
    "copied, three consumers": (
        Problem(7578, 256, 500, layout="tt", epilogue="bias_m+gelu_tanh"),
        {"arrangement": "coop", "consumers": 3, "tile_n": 24},
    ),
    "copied, ping-pong": (Problem(3704, 40, 3584, layout="nn", a_align=8, d_align=4), {"arrangement": "pp"}),
    "copied, stream-K": (
        Problem(2656, 256, 6135, layout="tn", a_align=8),
        {"arrangement": "coop", "stream_k": True, "tile_n": 104},
    ),
    "copied, three consumers that share K": (
        Problem(1024, 1003, 2005),
        {"arrangement": "coop", "consumers": 3, "stream_k": False, "split_k": 4, "reduction": "slots", "tile_n": 64},
    ),
    "copied to D": (
        Problem(2048, 1001, 1000),
        {"arrangement": "pp", "tile_m": 128, "tile_n": WIDEST, "swap_ab": True, "epilogue_n": 16},
    ),
    "two parts": (
        Problem(1024, 1024, 4096),
        {"arrangement": "coop", "consumers": 2, "tile_m": 256, "tile_n": 168, **IN_SLOTS},
    ),
    "two parts and an epilogue": (
        Problem(1024, 1024, 4096, epilogue="bias+gelu", layout="tn"),
        {"arrangement": "coop", "consumers": 1, "tile_m": 192, "tile_n": 112, **IN_SLOTS},
    ),
    "shares and an epilogue": (
        Problem(256, 512, 8192, epilogue="bias_m+relu"),
        {"arrangement": "coop", "consumers": 1, "tile_m": 128, "tile_n": 128, "stream_k": False, "split_k": 8}
        | {"reduction": "shares", "epilogue_n": 16},
    ),
    "parts in a cluster": (
        Problem(1024, 1024, 8192),
        {"arrangement": "coop", "consumers": 1, "tile_m": 192, "tile_n": 128, "stream_k": False, "split_k": 7},
    ),
    "turns": (
        Problem(4096, 4096, 4096),
        {"arrangement": "pp", "tile_m": 192, "tile_k": 64, "cluster_m": 1, "cluster_n": 2, "multicast_kind": "rotate"}
        | {"split_k": 1, "stream_k": False, "mma_in_flight": 1, "tile_n": 48},
    ),
    "clipped, ping-pong": (
        Problem(40, 4096, 4096),
        {"arrangement": "pp", "tile_m": 128, "tile_n": WIDEST, "cluster_n": 1, "clip_boxes": True},
    ),
    "gate": (Problem(4096, 8192, 4096, epilogue="silu+gated"), {"arrangement": "pp", "tile_m": 128, "tile_n": WIDEST}),
    "gate that shares K": (
        Problem(1024, 1024, 2048, epilogue="silu+gated", layout="tn"),
        {"arrangement": "coop", "consumers": 2, "split_k": 2, "reduction": "cluster", "evict_first": "b"},
    ),
    "residual after an activation": (
        Problem(4096, 4096, 4096, layout="nn", epilogue="scale_m+alpha+silu+residual+beta"),
        {"arrangement": "coop", "consumers": 2, "tile_m": 256, "tile_n": WIDEST},
    ),
    "gemv": (Problem(2, 4096, 4096), {"arrangement": "gemv", "consumers": 1, "tile_n": 32, "tile_k": 256}),
    "gemv with an epilogue": (
        Problem(1, 4096, 4096, epilogue="bias+gelu+residual"),
        {"arrangement": "gemv", "consumers": 1, "tile_n": 32, "tile_k": 256},
    ),
}
"""Problems and what is asked of their schedules; the rest is drawn."""


def in_corner(corner: str, count: int) -> tuple[Problem, list[Schedule]]:
    """The problem of a corner and `count` of its kernels, or all there are, always the same."""
    problem, wish = CORNERS[corner]
    rng = random.Random(corner)
    drawn = (nearest(sample(problem, H200, rng).to_json() | wish, problem, H200) for _ in range(100))
    fitting = (s for s in drawn if all(getattr(s, name) == value for name, value in wish.items() if value != WIDEST))
    schedules = [*dict.fromkeys(s.kernel for s in itertools.islice(fitting, count))]
    assert len(schedules) > 1
    return problem, schedules
