"""The draft: what the analytic model would run, for a problem nobody has measured.

The space is too large to estimate all of it for every problem, and the model does not see all of it. So every
CTA tile is estimated first, with its other dimensions at good defaults; then the best tiles with every choice
of what else the model can tell apart. Only what is best after that is made a valid schedule, by `space.nearest`.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from ..space import (
    COOPERATIVE,
    PINGPONG,
    BadInput,
    Device,
    Problem,
    Schedule,
    enumerate_schedules,
    nearest,
    shared_memory,
    tile_grid,
    unsupported,
)
from ..space.resources import operand_tiles
from ..space.rules import DEPENDENT_LAUNCH, SPLIT_K
from .analytic import clusters_at_once, estimate_us

TILE_DIMENSIONS = ("arrangement", "consumers", "tile_m", "tile_n", "tile_k")

PER_TILE = 3
"""Most kernels of a draft that share arrangement and tile."""

_SKINNY = 192
"""Problems with fewer rows also try D^T = B x A^T: 64-row instructions then run along n."""

_CLUSTER = 8
"""Largest cluster that every device runs."""

_STREAMED = 4
"""Waves beyond which the last one wastes too little for stream-K."""

_REFINED = 4
"""Tiles that `analytic_best` looks at closely."""

_SIZE = 4096
"""The extents of a problem that stands for all sizes of its kind."""


def draft(problem: Problem, device: Device, count: int, seed: int = 0) -> list[Schedule]:
    """The best `count` valid schedules by the analytic model, best first: distinct kernels, at most `PER_TILE` a tile.

    Estimates that are equal are put in a random order drawn from `seed`. Fewer come back only when the tiles
    that exist do not give that many.

    Raises:
        BadInput: no schedule can run the problem on the device.
    """
    rng = random.Random(seed)
    found: dict[Schedule, tuple[float, float]] = {}
    tiles = _best_tiles(problem, device, count)
    for _, group in itertools.groupby(sorted(tiles, key=_tile), key=_tile):
        variants = [s for tile in group for s in _variants(tile, problem)]
        timed = sorted((estimate_us(problem, s, device), rng.random(), s) for s in variants)
        kernels: set[Schedule] = set()
        for _, order, wish in timed:
            if len(kernels) == PER_TILE:
                break
            schedule = nearest(wish.to_json(), problem, device)
            if schedule.kernel not in kernels:
                kernels.add(schedule.kernel)
                found[schedule] = (estimate_us(problem, schedule, device), order)
    return heapq.nsmallest(count, found, key=found.__getitem__)


def analytic_best(problem: Problem, device: Device) -> Schedule:
    """The schedule that the analytic model prefers. Pure Python, tens of milliseconds.

    Raises:
        BadInput: no schedule can run the problem on the device.
    """
    variants = [s for tile in _best_tiles(problem, device, _REFINED) for s in _variants(tile, problem)]
    wishes = heapq.nsmallest(_REFINED, variants, key=lambda s: (estimate_us(problem, s, device), s))
    valid = [nearest(wish.to_json(), problem, device) for wish in wishes]
    return min(valid, key=lambda s: (estimate_us(problem, s, device), s))


def _tile(s: Schedule) -> tuple[object, ...]:
    return tuple(getattr(s, name) for name in TILE_DIMENSIONS)


def _best_tiles(problem: Problem, device: Device, count: int) -> list[Schedule]:
    """The `count` most promising tiles, best first, with swap and split of K chosen and the rest at defaults."""
    reasons = list(unsupported(problem, device))
    if reasons:
        raise BadInput("; ".join(reasons))
    swaps = (False, True) if problem.m < _SKINNY else (False,)
    candidates = (
        split
        for tile in _tiles(replace(problem, m=_SIZE, n=_SIZE, k=_SIZE), device)
        for swap in swaps
        if not _beyond(tile, problem, swap)
        for split in _splits(replace(tile, swap_ab=True) if swap else tile, problem, device)
    )
    return heapq.nsmallest(count, candidates, key=lambda s: (estimate_us(problem, s, device), s))


def _beyond(tile: Schedule, problem: Problem, swap: bool) -> bool:
    """Whether a smaller tile would cover the output as well: whole wgmma blocks lie outside."""
    rows, columns = (problem.n, problem.m) if swap else (problem.m, problem.n)
    return tile.tile_m - 64 >= rows or (tile.tile_n - 8 >= columns and tile.tile_n > 16)


def _splits(s: Schedule, problem: Problem, device: Device) -> Iterator[Schedule]:
    """`s` with whole tiles, and where those fill the device badly, with several CTAs to a tile."""
    yield s
    if s.arrangement != COOPERATIVE:
        return
    clusters = tile_grid(problem, s).clusters
    k_blocks = tile_grid(problem, s).k_blocks
    if 2 * clusters <= device.sm_count:
        fitting = [k for k in SPLIT_K if k <= k_blocks and k * clusters <= device.sm_count]
        in_cluster = [k for k in fitting if k <= _CLUSTER and clusters <= clusters_at_once(k, device)]
        shared = [replace(s, split_k=k, persistent=False, epilogue_n=16) for k in in_cluster[-2:] if k > 1]
        shared += [replace(s, split_k=k, persistent=False, reduction="slots") for k in fitting[-1:] if k > 1]
        yield from (ringed for part in shared if (ringed := _with_ring(part, problem, device)).stages > 1)
    elif clusters < _STREAMED * device.sm_count and clusters % device.sm_count:
        yield replace(s, stream_k=True, reduction="slots")


@functools.lru_cache(maxsize=8)
def _tiles(problem: Problem, device: Device) -> tuple[Schedule, ...]:
    """Every arrangement and tile, with the other dimensions at what is good for most; `problem` has any large sizes.

    These are estimated and not run: some ask for a little more than is valid.
    """
    return tuple(
        _completed(tile, problem, device) for tile in enumerate_schedules(problem, device, names=TILE_DIMENSIONS)
    )


def _completed(tile: Schedule, problem: Problem, device: Device) -> Schedule:
    producer, consumer = {1: (0, 0), 2: (40, 232), 3: (32, 160)}[tile.consumers]
    alone = tile.arrangement == PINGPONG or tile.consumers == 1
    large = tile.tile_m * tile.tile_n >= 128 * 176
    tile = replace(
        tile,
        producer_regs=producer,
        consumer_regs=consumer,
        store="tma",
        # A narrow chunk leaves the shared memory of a large tile to its ring.
        epilogue_n=32 if large else 64,
        epilogue_buffers=1 if tile.arrangement == PINGPONG else 2,
        mma_in_flight=int(alone),
        swizzle=8,
    )
    return _with_ring(tile, problem, device)


def _with_ring(s: Schedule, problem: Problem, device: Device) -> Schedule:
    """`s` with the stages that fit, at most eight."""
    stage = sum(tile.stage_bytes for tile in operand_tiles(problem, s))
    free = device.smem_per_cta - shared_memory(problem, s).total
    return replace(s, stages=min(8, s.stages + free // stage))


def _variants(tile: Schedule, problem: Problem) -> Iterator[Schedule]:
    """Around a tile, everything else that the model can tell apart."""
    clusters = ((1, 1), (2, 1), (1, 2)) if tile.split_k == 1 and not tile.stream_k else ((1, 1),)
    stages = sorted({max(2, ring) for ring in (tile.stages, tile.stages - 1, min(4, tile.stages))})
    hints = ("", "b") if problem.m < _SKINNY else ("",)
    rasters = (("m", 8), ("n", 8), ("m", 16), ("n", 4))
    for in_flight, cluster, raster, ring, hint in itertools.product((0, 1), clusters, rasters, stages, hints):
        yield replace(
            tile,
            mma_in_flight=in_flight,
            cluster_m=cluster[0],
            cluster_n=cluster[1],
            raster=raster[0],
            swizzle=raster[1],
            stages=ring,
            evict_first=hint,
            dependent_launch=DEPENDENT_LAUNCH[problem.overlap][-1],
        )
