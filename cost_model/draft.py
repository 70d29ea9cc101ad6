"""The draft: what the analytic model would run, for a problem nobody has measured.

The space is too large to estimate all of it for every problem, and the model does not see all of it. So every
CTA tile is estimated first in every structure (whole tiles, several CTAs an SM, shares of K) with its other dimensions
at good defaults; then the best of these in clusters; then the best of all with every choice of what else the model can
tell apart. What is like others that come before it is handicapped, as the model errs alike on what is alike. Only what
is best after that is made a valid schedule, by `space.nearest`.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..space import (
    COOPERATIVE,
    GEMV,
    PINGPONG,
    BadInput,
    Device,
    Problem,
    Schedule,
    domain,
    enumerate_schedules,
    nearest,
    shared_memory,
    tile_grid,
    unsupported,
    violations,
)
from ..space.gemv import STAGES as GEMV_STAGES
from ..space.gemv import gemv_tile, gemv_tiles
from ..space.resources import can_clip, copied, operand_tiles, register_splits
from ..space.rules import CLUSTERS, DEPENDENT_LAUNCH, HELD_BLOCKS, SPLIT_K, SWIZZLES, TILE_K, can_hold, fetches_residual
from ..space.schedule import vary
from .analytic import SMEM_RESERVED, clusters_at_once, ctas_per_sm, estimate_us, read_once

TILE_DIMENSIONS = ("arrangement", "consumers", "load", "tile_m", "tile_n")

PER_TILE = 3
"""Most kernels of a draft that share arrangement, tile and structure."""

STRUCTURE_HANDICAP = 0.01
TILE_HANDICAP = 0.02
"""Part of its time that a schedule is put back for each better one of its structure, and of its tile."""

_NARROW = 16
"""Widest tile that is tried also where a narrower one would cover the output."""

_CLUSTER = 16
"""Largest cluster that a share of K is spread over."""

_STREAMED = 4
"""Waves beyond which the last one wastes too little for stream-K."""

_PER_SM = (2, 3, 4)
"""CTAs of a kernel that is not persistent tried on one SM."""

_STAGES = 8
"""Deepest ring tried."""

_GATHERED = 3
"""Tiles that are tried in clusters, for each that is wanted."""

_RESIDUAL_BUFFERS = 2
"""Chunks of a residual that loader warps have on their way: consumers that read it themselves wait for it."""

_L2_PROMOTION = 128
"""Bytes that a load brings into L2: as fast as 256 where rows begin at multiples of those, and up to 15 % faster where
they do not, or where CTAs take shares of K."""

_SKINNY = 512
"""Rows below which D^T = B x A^T is always tried: 64-row instructions then run along n."""

_TRANSPOSED = 0.99
"""With more rows it is tried where a tile takes less than this share of its time in the product as it is: where it only
mirrors that, it wins nothing."""

_REFINED = 4
"""Tiles that `analytic_best` looks at closely."""

_SIZE = 4096
"""The extents of a problem that stands for all sizes of its kind."""


def draft(problem: Problem, device: Device, count: int, seed: int = 0) -> list[Schedule]:
    """`count` valid schedules that the analytic model likes, best first and spread over structures: distinct kernels,
    at most `PER_TILE` of one tile and structure.

    Estimates that are equal are put in a random order drawn from `seed`. Fewer come back only when the tiles
    that exist do not give that many.

    Raises:
        BadInput: no schedule can run the problem on the device.
    """
    rng = random.Random(seed)
    timed: list[tuple[float, float, Schedule]] = []
    for tile in _best_tiles(problem, device, count):
        variants = _variants(tile, problem, device)
        timed += [(us, rng.random(), s) for us, s in heapq.nsmallest(PER_TILE, variants)]
    timed.sort()
    found: dict[Schedule, Schedule] = {}
    like: Counter[tuple[Any, ...]] = Counter()
    for wish in spread([(us, s) for us, _, s in timed]):
        schedule = nearest(wish.to_json(), problem, device)
        if schedule.kernel not in found and like[tile_of(schedule)] < PER_TILE:
            found[schedule.kernel] = schedule
            like[tile_of(schedule)] += 1
            if len(found) == count:
                break
    return list(found.values())


def analytic_best(problem: Problem, device: Device) -> Schedule:
    """The schedule that the analytic model prefers. Pure Python: a tenth of a second or two.

    Raises:
        BadInput: no schedule can run the problem on the device.
    """
    variants = [timed for tile in _best_tiles(problem, device, _REFINED) for timed in _variants(tile, problem, device)]
    wishes = [s for _, s in heapq.nsmallest(_REFINED, variants)]
    valid = [nearest(wish.to_json(), problem, device) for wish in wishes]
    return min(valid, key=lambda s: (estimate_us(problem, s, device), s))


def structure(s: Schedule) -> tuple[Any, ...]:
    """What schedules share that the model is likely to misjudge in the same way."""
    share = "stream" if s.stream_k else s.reduction if s.split_k > 1 else ""
    return s.arrangement, s.swap_ab, share, s.persistent


def tile_of(s: Schedule) -> tuple[Any, ...]:
    """What near-copies share: structure and tile."""
    return structure(s), s.consumers, s.tile_m, s.tile_n


def spread(timed: Iterable[tuple[float, Schedule]]) -> list[Schedule]:
    """Schedules with their times, fastest first, in an order in which structures take turns where they are close."""
    before: Counter[tuple[Any, ...]] = Counter()
    order: list[tuple[float, int, Schedule]] = []
    for us, s in timed:
        like, tile = structure(s), tile_of(s)
        back = STRUCTURE_HANDICAP * before[like] + TILE_HANDICAP * before[tile]
        order.append((us * (1 + back), len(order), s))
        before[like] += 1
        before[tile] += 1
    return [s for _, _, s in sorted(order)]


def _best_tiles(problem: Problem, device: Device, count: int) -> list[Schedule]:
    """The `count` most promising tiles in their structures, best first, the rest at defaults."""
    reasons = list(unsupported(problem, device))
    if reasons:
        raise BadInput("; ".join(reasons))
    tiled = (s for tile in _oriented(problem, device) for s in _structures(tile, problem, device))
    candidates = [*tiled, *_streamed(problem, device)]
    if problem.deterministic:
        candidates = [s for s in candidates if s.numerics == "deterministic"]
    times = {s: estimate_us(problem, s, device) for s in candidates}
    skinny = problem.m < min(_SKINNY, problem.n)
    apart = sorted((us, s) for s, us in times.items() if skinny or us < _TRANSPOSED * _mirrored(s, times))
    gathered = [c for _, s in apart[: _GATHERED * count] for c in _in_clusters(s, problem, device)]
    return spread(sorted([*apart, *((estimate_us(problem, s, device), s) for s in gathered)]))[:count]


def _oriented(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Every tile that is no larger than the output asks for, also transposed where a kernel can. Rows of a tile that
    nothing of the matrix falls into are not loaded."""
    tiles = _tiles(problem.resized(_SIZE, _SIZE, _SIZE), device)
    widths = sorted({tile.tile_n for tile in tiles})
    for tile, swap in itertools.product(tiles, (False, True)):
        if _beyond(tile, problem, swap, widths) or (swap and _keeps_rows(tile, problem)):
            continue
        turned = vary(tile, swap_ab=swap)
        yield vary(turned, clip_boxes=can_clip(problem, turned))


def _mirrored(s: Schedule, times: Mapping[Schedule, float]) -> float:
    """What the tile of a transposed product takes in the product as it is."""
    return times.get(vary(s, swap_ab=False), math.inf) if s.swap_ab else math.inf


def _in_clusters(s: Schedule, problem: Problem, device: Device) -> Iterator[Schedule]:
    """`s` with CTAs that share loads, where they walk over whole tiles or meet in device memory; as many to a tile as
    are still at work together."""
    if s.arrangement == GEMV or s.load != "tma" or s.stream_k or s.dealt or not (s.persistent or s.workspace):
        return
    for m, n in CLUSTERS[1:]:
        gathered = vary(s, cluster_m=m, cluster_n=n, parts_apart=False)
        if s.split_k > 1:
            most = clusters_at_once(m * n, device) // tile_grid(problem, gathered).clusters
            gathered = vary(gathered, split_k=max((k for k in SPLIT_K if k <= min(most, s.split_k)), default=1))
        if (gathered.split_k > 1) == (s.split_k > 1):
            yield gathered


def _keeps_rows(s: Schedule, problem: Problem) -> bool:
    """Whether a kernel cannot compute D^T: gated pairs lie along its rows, a residual is transposed by its loaders."""
    return problem.fused.gated or (problem.fused.residual and not s.residual_buffers)


def _streamed(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Every tile of a `gemv`, with K whole and shared by as many CTAs as fill the device once or twice."""
    for tile in gemv_tiles(problem, device):
        grid = tile_grid(problem, tile)
        shares = domain("split_k", tile, problem, device)
        full = [k for k in shares if k > 1 and k * grid.ctas <= 2 * device.sm_count]
        for split in (1, *full[-1:]):
            yield vary(tile, split_k=split, reduction="slots" if split > 1 else "cluster")


def _beyond(tile: Schedule, problem: Problem, swap: bool, widths: Sequence[int]) -> bool:
    """Whether a smaller tile would cover the output as well; `widths` are those that tiles of its kind come in,
    narrowest first. Those up to `_NARROW` are all tried."""
    rows, columns = (problem.n, problem.m) if swap else (problem.m, problem.n)
    covering = next((width for width in widths if width >= columns), widths[-1])
    return tile.tile_m - 64 >= rows or tile.tile_n > max(covering, _NARROW)


def _structures(s: Schedule, problem: Problem, device: Device) -> Iterator[Schedule]:
    """`s` with one CTA an SM that walks over whole tiles, with several CTAs an SM, and where whole tiles fill the
    device badly, with several CTAs to a tile."""
    yield s
    if s.arrangement != COOPERATIVE:
        return
    clusters = tile_grid(problem, s).clusters
    if clusters > device.sm_count:
        yield from _crowded(s, problem, device)
    if 2 * clusters <= device.sm_count:
        yield from _shared_k(s, problem, device)
    if clusters < _STREAMED * device.sm_count and clusters % device.sm_count:
        for part in _parts(s):
            yield _with_ring(vary(part, stream_k=True, reduction="slots"), problem, device)


def _shared_k(s: Schedule, problem: Problem, device: Device) -> Iterator[Schedule]:
    """`s` with as many CTAs to a tile as the device holds: in a cluster, one an SM that meet in device memory, and
    several an SM that do."""
    grid = tile_grid(problem, s)
    shares = [k for k in SPLIT_K if 1 < k <= grid.k_blocks]
    in_cluster = [k for k in shares if k <= _CLUSTER and grid.clusters <= clusters_at_once(k, device)]
    fitting = [k for k in shares if k * grid.clusters <= device.sm_count]
    twice = [k for k in shares if device.sm_count < k * grid.clusters <= 2 * device.sm_count]
    alone = [vary(s, split_k=k, persistent=False, epilogue_n=16) for k in in_cluster[-2:]]
    alone += [deep for each in alone if (deep := _deepened(each, problem, device))]
    for part in _parts(s):
        for k in fitting[-1:]:
            split = vary(part, split_k=k, persistent=False, parts_apart=grid.clusters > 1)
            alone += [vary(split, reduction=reduction) for reduction in ("slots", "atomic")]
            alone.append(vary(split, reduction="shares", epilogue_n=16))
        for k in twice[-1:]:
            split = vary(part, split_k=k, reduction="slots", parts_apart=grid.clusters > 1)
            for crowded in _crowded(split, problem, device):
                yield from (crowded, vary(crowded, reduction="atomic"))
    yield from (ringed for each in alone if (ringed := _with_ring(each, problem, device)).stages > 1)


def _parts(s: Schedule) -> Iterator[Schedule]:
    """`s` where parts of tiles meet in device memory. It is then not known who ends a tile, so that no residual is
    fetched ahead, and one that is not is not transposed."""
    if not (s.swap_ab and s.residual_buffers):
        yield vary(s, residual_buffers=0)


def _crowded(s: Schedule, problem: Problem, device: Device) -> Iterator[Schedule]:
    """`s` not persistent, its ring so short that several CTAs share an SM."""
    s = vary(s, persistent=False, producer_regs=0, consumer_regs=0)
    for count in _PER_SM:
        spare = device.smem_per_cta - ((device.smem_per_cta + SMEM_RESERVED) // count - SMEM_RESERVED)
        ringed = _with_ring(s, problem, device, spare)
        if ringed.stages > 1 and ctas_per_sm(problem, ringed, device) >= count:
            yield ringed


@functools.lru_cache(maxsize=8)
def _tiles(problem: Problem, device: Device) -> tuple[Schedule, ...]:
    """Every arrangement and tile, with the other dimensions at what is good for most; `problem` has any large sizes.

    These are estimated and not run: some ask for a little more than is valid.
    """
    return tuple(
        _completed(tile, problem, device) for tile in enumerate_schedules(problem, device, names=TILE_DIMENSIONS)
    )


def _completed(tile: Schedule, problem: Problem, device: Device) -> Schedule:
    producer, consumer = register_splits(tile)[-1]
    alone = tile.arrangement == PINGPONG or tile.consumers == 1
    large = tile.tile_m * tile.tile_n >= 128 * 176
    fetched = problem.fused.residual and fetches_residual(problem, tile)
    tile = vary(
        tile,
        straight_start=True,
        early_fill=True,
        producer_regs=producer,
        consumer_regs=consumer,
        store="copy" if copied(problem, "d") else "tma",
        # A narrow chunk leaves the shared memory of a large tile to its ring.
        epilogue_n=32 if large else 64,
        epilogue_buffers=1 if tile.arrangement == PINGPONG else 2,
        mma_in_flight=int(alone),
        swizzle=8,
        l2_promotion=_L2_PROMOTION,
        residual_buffers=_RESIDUAL_BUFFERS if fetched else 0,
    )
    return _with_ring(tile, problem, device)


def _deepened(s: Schedule, problem: Problem, device: Device) -> Schedule | None:
    """`s` with parts exchanged in the ring, where that makes room for a stage."""
    deep = vary(s, exchange_in_ring=not s.residual_buffers)
    stages = [_with_ring(each, problem, device).stages for each in (s, deep)]
    return deep if stages[0] < stages[1] else None


def _with_ring(s: Schedule, problem: Problem, device: Device, spare: int = 0) -> Schedule:
    """`s` with the stages that fit beside `spare` bytes of shared memory, at most `_STAGES`; fewer than one do not."""
    ring = operand_tiles(problem, s)[: 1 if s.held_blocks else None]
    free = device.smem_per_cta - spare - shared_memory(problem, s).total
    stages = s.stages + free // sum(tile.stage_bytes for tile in ring)
    return vary(s, stages=min(s.held_blocks or _STAGES, _STAGES, stages))


def _variants(tile: Schedule, problem: Problem, device: Device) -> list[tuple[float, Schedule]]:
    """Around a tile, everything else that the model can tell apart, with its estimates in microseconds."""

    def timed(s: Schedule) -> tuple[float, Schedule]:
        return estimate_us(problem, s, device), s

    launch = DEPENDENT_LAUNCH[problem.overlap][-1]
    if tile.arrangement == GEMV:
        tile = vary(tile, evict_first=gemv_tile(problem, tile).weights, dependent_launch=launch)
        deeper = [vary(tile, stages=stages) for stages in GEMV_STAGES]
        return [timed(s) for s in deeper if not violations(problem, s, device)]
    once = read_once(tile_grid(problem, tile), tile)
    tile = vary(tile, evict_first=once, dependent_launch=launch)
    walks = (("m", 8), ("n", 8), ("m", 16), ("n", 4))
    _, tile = min(timed(vary(tile, raster=raster, swizzle=swizzle)) for raster, swizzle in walks)
    found = []
    for tile_k, in_flight in itertools.product(TILE_K, (0, 1)):
        deepest = tile.stages * tile.tile_k // tile_k
        for stages in sorted({deepest, deepest - 1, min(4, deepest)}):
            if stages > 1:
                found.append(timed(vary(tile, tile_k=tile_k, stages=stages, mma_in_flight=in_flight)))
        if (held := _holding(vary(tile, tile_k=tile_k, mma_in_flight=in_flight), problem, device)).stages > 1:
            found.append(timed(held))
    return found or [timed(tile)]


def _holding(s: Schedule, problem: Problem, device: Device) -> Schedule:
    """`s` with its column operand in place from tile to tile; of no stage where that cannot be."""
    blocks = tile_grid(problem, s).k_blocks
    if blocks not in HELD_BLOCKS or not s.persistent or not can_hold(s):
        return vary(s, stages=0)
    return _with_ring(vary(s, held_blocks=blocks, stages=1, raster="m", swizzle=max(SWIZZLES)), problem, device)
