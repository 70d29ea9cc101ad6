"""What NVIDIA's nvMatmulHeuristics would run, for comparison; the package `nvidia-matmul-heuristics` is optional."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ..cost_model.analytic import estimate_us
from ..space import Device, Problem, Schedule

ASKED = 64
"""Configurations asked for: more bring hardly any new ones."""

_PRECISION = {"bf16": "TST", "fp16": "HSH"}
"""Operand, accumulator and output in its letters."""


def available() -> bool:
    """Whether the package is installed."""
    return find_spec("nvMatmulHeuristics") is not None


def nvidia_order(problem: Problem, schedules: Sequence[Schedule], device: Device) -> list[Schedule]:
    """The measured schedules nearest to its configurations, in the order of the time it expects; each once.

    A configuration says tile, cluster, stages, split of K and swizzle, along the axes of the output. What it leaves
    open is decided in its favour: by our own analytic model.
    """
    left = {s: (_facts(s), estimate_us(problem, s, device)) for s in schedules}
    order = []
    for wish in _configurations(problem):
        if not left:
            break
        nearest = min(left, key=lambda s: (round(math.dist(left[s][0], wish), 6), left[s][1], s))
        order.append(nearest)
        del left[nearest]
    return order


def _facts(s: Schedule) -> list[float]:
    along_m, along_n = (s.tile_n, s.tile_m) if s.swap_ab else (s.tile_m, s.tile_n)
    cluster_m, cluster_n = (s.cluster_n, s.cluster_m) if s.swap_ab else (s.cluster_m, s.cluster_n)
    return _logs(along_m, along_n, s.tile_k, cluster_m, cluster_n, s.stages, s.split_k, s.swizzle)


def _logs(*numbers: int) -> list[float]:
    return [math.log2(number) for number in numbers]


def _configurations(problem: Problem) -> list[list[float]]:
    """Its distinct configurations for an H200, those it expects to be fastest first."""
    package, interface = _interface()
    layout = package.boolsToNvMatmulHeuristicsLayout(problem.a_major == "k", problem.b_major == "n")
    asked = interface.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout, problem.batch)
    found = interface.get(asked, ASKED, precision=_PRECISION[problem.dtype])
    wishes = [
        _logs(
            config.cta_tile_m,
            config.cta_tile_n,
            config.cta_tile_k,
            config.cluster_m,
            config.cluster_n,
            config.stages,
            config.split_k,
            config.swizzle_factor,
        )
        for config in (each["kernel"] for each in sorted(found, key=lambda each: each["runtime"]))
    ]
    # It tells warp tiles apart, which a warpgroup does not have.
    return [wish for index, wish in enumerate(wishes) if wish not in wishes[:index]]


@functools.cache
def _interface() -> tuple[Any, Any]:
    import nvMatmulHeuristics as package

    gpu = package.NvMatmulHeuristicsNvidiaGpu.H200_SXM
    return package, package.NvMatmulHeuristicsInterfaceEx(package.NvMatmulHeuristicsTarget.CUTLASS3, gpu=gpu)
