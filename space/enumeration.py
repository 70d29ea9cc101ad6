"""Walking over the valid space: every schedule, a random one, the nearest one, the neighbours of one.

The constraints are built into the walk. Dimensions are chosen in a fixed order, and each offers only values
that are valid with those chosen before and leave at least one value to those that follow; no schedule is made
and then thrown away.
"""

from __future__ import annotations

import functools
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import gemv
from .device import Device
from .problem import DTYPE_BYTES, PROMOTED, Problem
from .resources import (
    SWIZZLE_BYTES,
    can_clip,
    copied,
    load_of,
    max_accumulators,
    operand_tiles,
    piece_count,
    producer_extras,
    register_splits,
    shared_memory,
    stores_per_piece,
    tile_columns,
)
from .rules import (
    ALONE_STAGES,
    CLUSTERS,
    CONSUMERS,
    DEPENDENT_LAUNCH,
    EPILOGUE_BUFFERS,
    EPILOGUE_N,
    EVICT_FIRST,
    HANDS,
    HELD_BLOCKS,
    L2_PROMOTIONS,
    LOADS,
    MAX_CLUSTER,
    MMA_IN_FLIGHT,
    MULTICAST_KINDS,
    MULTICAST_ROWS,
    RASTERS,
    REDUCTIONS,
    RESIDUAL_BUFFERS,
    SPLIT_K,
    STAGES,
    STORES,
    SWIZZLES,
    TILE_M,
    TILE_N,
    alone_counts,
    can_deal,
    can_fill_alone,
    can_fill_early,
    can_hold,
    can_part,
    epilogue_ns,
    fetches_residual,
    split_too_far,
    stored_whole,
    tile_ks,
)
from .schedule import COOPERATIVE, GEMV, LAUNCH_FIELDS, PINGPONG, Schedule, vary
from .tiles import tile_grid

_Domain = Callable[[Schedule, Problem, Device], Iterable[Any]]

_START = Schedule(COOPERATIVE, 1, 64, 16, 64, 2, store="direct")
"""The smallest schedule: what a dimension not yet chosen is taken to be."""


def _fits(s: Schedule, problem: Problem, device: Device) -> bool:
    return shared_memory(problem, s).total <= device.smem_per_cta


def _fitting(name: str, values: tuple[int, ...], s: Schedule, problem: Problem, device: Device) -> tuple[int, ...]:
    """The values of a dimension whose need of memory grows with it, up to the largest that fits."""
    return values[: bisect_left(values, True, key=lambda value: not _fits(vary(s, **{name: value}), problem, device))]


def _arrangement(s: Schedule, problem: Problem, device: Device) -> Iterable[str]:
    return CONSUMERS if gemv.gemv_tiles(problem, device) else [a for a in CONSUMERS if a != GEMV]


def _tile_m(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    # The narrowest tile must fit the accumulators under some register split.
    narrowest = _tile_ns(s, problem)[0]
    tiles = [vary(s, tile_m=m) for m in TILE_M if m % (64 * s.warpgroups_per_tile) == 0]
    return [tile.tile_m for tile in tiles if narrowest <= _widest(tile, problem, device)]


def _tile_n(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    valid, widest = _tile_ns(s, problem), _widest(s, problem, device)
    fitting = _fitting("tile_n", TILE_N, _smallest(s, problem), problem, device)
    return [n for n in fitting if n <= widest and n in valid]


def _tile_ns(s: Schedule, problem: Problem) -> list[int]:
    """The values of tile_n that TMA loads and stores: with a gate two halves, of whole slabs where not K-major."""
    step = TILE_N[0]
    if problem.fused.gated:
        step = 2 * (MULTICAST_ROWS if problem.b_major == "k" else SWIZZLE_BYTES // DTYPE_BYTES[problem.dtype])
    return [n for n in TILE_N if n % step == 0 and stored_whole(problem, tile_columns(problem, vary(s, tile_n=n)))]


def _widest(s: Schedule, problem: Problem, device: Device) -> int:
    """The largest tile_n whose accumulators fit some register split."""
    most = max(max_accumulators(problem, split, device.registers_per_sm) for split in _with_splits(s))
    return 2 * most // s.m64_per_warpgroup


def _with_splits(s: Schedule) -> list[Schedule]:
    return [vary(s, producer_regs=p, consumer_regs=c) for p, c in register_splits(s)]


def _splits(s: Schedule, problem: Problem, device: Device) -> list[tuple[int, int]]:
    return [
        (split.producer_regs, split.consumer_regs)
        for split in _with_splits(s)
        if s.accumulators <= max_accumulators(problem, split, device.registers_per_sm)
    ]


def _epilogue_n(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    if s.store == "direct":
        return [64]
    widest = max(tile_columns(problem, s), EPILOGUE_N[0])
    return [
        n
        for n in epilogue_ns(problem, s)
        if n <= widest and _fits(vary(_buffered(s, problem), epilogue_n=n, epilogue_buffers=1), problem, device)
    ]


def _epilogue_buffers(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    if s.store == "direct":
        return [2]
    stores = piece_count(problem, s) * stores_per_piece(problem)
    buffered = _buffered(s, problem)
    return [b for b in EPILOGUE_BUFFERS if b <= stores and _fits(vary(buffered, epilogue_buffers=b), problem, device)]


def _residual_buffers(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    if not problem.fused.residual or s.workspace or s.exchange_in_ring or not fetches_residual(problem, s):
        return [0]
    least = _buffered(s, problem).residual_buffers
    wider = [vary(s, residual_buffers=b) for b in RESIDUAL_BUFFERS if b >= least]
    return [w.residual_buffers for w in wider if _producer_fits(w, problem) and _fits(w, problem, device)]


def _buffered(s: Schedule, problem: Problem) -> Schedule:
    """With the fewest residual buffers that the choices so far allow."""
    return vary(s, residual_buffers=1) if s.swap_ab and problem.fused.residual else s


def _store(s: Schedule, problem: Problem, device: Device) -> Iterable[str]:
    narrow = _staged(s, problem)
    if copied(problem, "d"):
        return ["copy"]
    stores = ["tma"] if _must_stage(s, problem) else ["tma", "direct"]
    return [store for store in stores if _fits(vary(narrow, store=store), problem, device)]


def _must_stage(s: Schedule, problem: Problem) -> bool:
    """Whether direct stores are out of the question: they transpose nothing, fuse nothing, and store pairs."""
    return s.swap_ab or s.dealt or problem.epilogue != "none" or copied(problem, "d")


def _staged(s: Schedule, problem: Problem) -> Schedule:
    """With the smallest epilogue that goes through shared memory."""
    store = "copy" if copied(problem, "d") else "tma"
    return vary(_buffered(s, problem), store=store, epilogue_n=EPILOGUE_N[0], epilogue_buffers=1)


def _swap_ab(s: Schedule, problem: Problem, device: Device) -> Iterable[bool]:
    transposes = not problem.fused.gated and (not problem.fused.residual or fetches_residual(problem, s))
    swaps = [vary(s, swap_ab=swap) for swap in (False, *[True] * transposes)]
    return [
        swap.swap_ab
        for swap in swaps
        if _fits(_smallest(swap, problem), problem, device) and _producer_fits(_buffered(swap, problem), problem)
    ]


def _smallest(s: Schedule, problem: Problem) -> Schedule:
    """With the smallest epilogue that the choices so far allow."""
    return _staged(s, problem) if _must_stage(s, problem) else vary(s, store="direct")


def _can_share_k(s: Schedule, problem: Problem, device: Device) -> bool:
    return s.arrangement != PINGPONG and any(_adds_up(s, r, problem, device) for r in REDUCTIONS)


def _adds_up(s: Schedule, reduction: str, problem: Problem, device: Device) -> bool:
    """Whether registers suffice to add up parts of tiles this way."""
    shared = vary(s, split_k=2, reduction=reduction)
    return s.accumulators <= max_accumulators(problem, shared, device.registers_per_sm)


def _held_blocks(s: Schedule, problem: Problem, device: Device) -> list[int]:
    blocks = tile_grid(problem, s).k_blocks
    held = vary(s, held_blocks=blocks)
    possible = blocks in HELD_BLOCKS and can_hold(s) and _fits(_smallest(held, problem), problem, device)
    return [0, blocks] if possible else [0]


def _stream_k(s: Schedule, problem: Problem, device: Device) -> Iterable[bool]:
    if s.held_blocks:
        return [False]
    grid = tile_grid(problem, s)
    enough = grid.ctas * grid.k_blocks >= device.sm_count and grid.k_blocks * 2 * device.sm_count**2 < 2**32
    streamed = vary(s, stream_k=True, reduction="slots")
    free = not _loads_residual(s, problem) and _producer_fits(streamed, problem)
    possible = enough and free and s.arrangement != PINGPONG and _adds_up(s, "slots", problem, device)
    return [False, True] if possible and _fits(_smallest(streamed, problem), problem, device) else [False]


def _producer_fits(s: Schedule, problem: Problem) -> bool:
    return s.producer_regs != 24 or not producer_extras(problem, s)


def _split_k(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    if s.stream_k or s.held_blocks or not _can_share_k(s, problem, device):
        return [1]
    grid = tile_grid(problem, s)
    # Both are numbered in 32 bits; clusters may yet round the tiles up to sixteen times as many.
    most = min(grid.k_blocks, 2**31 // grid.k_blocks - 1, 2**27 // grid.ctas)
    shares = [k for k in SPLIT_K if 1 < k <= most]
    # What two can add up in slots of device memory, any number can.
    if "slots" not in _reductions(vary(s, split_k=2), problem, device):
        shares = [k for k in shares if any(_reductions(vary(s, split_k=k), problem, device))]
    return [1, *shares]


def _reductions(s: Schedule, problem: Problem, device: Device) -> Iterator[str]:
    possible = REDUCTIONS if s.split_k <= MAX_CLUSTER else [r for r in REDUCTIONS if r != "cluster"]
    if _loads_residual(s, problem):
        possible = [r for r in possible if r == "cluster"]
    if problem.deterministic:
        possible = [r for r in possible if r != "atomic"]
    if any(split_too_far(problem, vary(s, reduction="shares"), device)):
        possible = [r for r in possible if r != "shares"]
    for r in possible:
        if _adds_up(s, r, problem, device) and _exchanges_in_ring(vary(s, reduction=r), problem, device):
            yield r


def _exchanges_in_ring(s: Schedule, problem: Problem, device: Device) -> list[bool]:
    possible = s.split_cluster and not _loads_residual(s, problem)
    places = [vary(s, exchange_in_ring=value) for value in ([False, True] if possible else [False])]
    return [place.exchange_in_ring for place in places if _fits(_smallest(place, problem), problem, device)]


def _loads_residual(s: Schedule, problem: Problem) -> bool:
    """Whether loader warps must bring the residual, which they cannot where it is not known who ends a tile."""
    return _buffered(s, problem).residual_buffers > 0


def _reduction(s: Schedule, problem: Problem, device: Device) -> Iterable[str]:
    if s.stream_k:
        return ["slots"]
    if s.split_k == 1:
        return ["cluster"]
    return _reductions(s, problem, device)


@functools.lru_cache(maxsize=4096)
def _clusters(s: Schedule, problem: Problem, device: Device) -> list[tuple[int, int]]:
    if s.split_cluster or s.held_blocks or s.load == "copy":
        return [(1, 1)]
    return [
        (m, n)
        for m, n in CLUSTERS
        if any(_multicast_kinds(cluster := vary(s, cluster_m=m, cluster_n=n), problem))
        and not any(split_too_far(problem, cluster, device))
    ]


def _cluster_n(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    return sorted(n for m, n in _clusters(vary(s, cluster_m=1), problem, device) if m == s.cluster_m)


def _multicast_kinds(s: Schedule, problem: Problem) -> Iterator[str]:
    kinds = (vary(s, multicast_kind=kind) for kind in (MULTICAST_KINDS if s.multicast else MULTICAST_KINDS[:1]))
    yield from (kind.multicast_kind for kind in kinds if _producer_fits(kind, problem) and _slices_fit(kind, problem))


def _slices_fit(s: Schedule, problem: Problem) -> bool:
    tiles = operand_tiles(problem, s)
    return all(tile.slab_rows % (MULTICAST_ROWS * tile.slices * tile.slab_boxes) == 0 for tile in tiles)


def _clip_boxes(s: Schedule, problem: Problem, device: Device) -> list[bool]:
    possible = s.load == "tma" and not s.held_blocks and can_clip(problem, s)
    return [False, True] if possible else [False]


def _alone_stages(s: Schedule, problem: Problem, device: Device) -> list[int]:
    return list(alone_counts(problem, s)) if can_fill_alone(s) else [0]


def _early_fill(s: Schedule, problem: Problem, device: Device) -> list[bool]:
    possible = can_fill_early(s) and _producer_fits(vary(s, early_fill=True), problem)
    return [False, True] if possible else [False]


def _persistent(s: Schedule) -> list[bool]:
    if s.dealt:
        return [False]
    return [True] if s.stream_k or s.held_blocks else [True, False]


def _ctas(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    # Besides all SMs, the largest power of two: it divides power-of-two grids into equal shares.
    power = 2 ** int(math.log2(device.sm_count))
    return [0, power] if s.persistent and power < device.sm_count and power % s.cluster_size == 0 else [0]


def _fast_tiles(s: Schedule, problem: Problem) -> int:
    grid = tile_grid(problem, s)
    return grid.m if s.raster == "m" else grid.n


def _swizzle(s: Schedule, problem: Problem, device: Device) -> Iterable[int]:
    # A band taller than the grid is the same walk as one just as tall, and one of two axes is enough for that.
    fast = _fast_tiles(s, problem)
    return [g for g in SWIZZLES if g == 1 or g < fast]


def _raster(s: Schedule, problem: Problem, device: Device) -> Iterable[str]:
    return RASTERS[:1] if s.held_blocks else RASTERS


def _serpentine(s: Schedule, problem: Problem, device: Device) -> Iterable[bool]:
    return [False, True] if _fast_tiles(s, problem) > s.swizzle else [False]


def _k_zigzag(s: Schedule, problem: Problem, device: Device) -> Iterable[bool]:
    return [False, True] if s.persistent and not s.held_blocks and tile_grid(problem, s).k_blocks > 1 else [False]


def _evict_first(s: Schedule, problem: Problem, device: Device) -> Iterable[str]:
    hints = EVICT_FIRST if s.load == "tma" else EVICT_FIRST[:1]
    return [hint for hint in hints if _producer_fits(vary(s, evict_first=hint), problem)]


def _dependent_launch(s: Schedule, problem: Problem, device: Device) -> Iterable[str]:
    launches = DEPENDENT_LAUNCH[problem.overlap if s.load == "tma" or problem.overlap == "none" else "launch"]
    varied = [vary(s, dependent_launch=launch) for launch in launches]
    return [v.dependent_launch for v in varied if _producer_fits(v, problem) and (not s.held_blocks or can_hold(v))]


_TILED: Mapping[str, _Domain] = {
    "arrangement": _arrangement,
    "consumers": lambda s, p, d: CONSUMERS[s.arrangement],
    "load": lambda s, p, d: [load_of(p)],
    "tile_m": _tile_m,
    "tile_n": _tile_n,
    "tile_k": lambda s, p, d: _fitting("tile_k", tile_ks(p), _smallest(s, p), p, d),
    "consumer_regs": lambda s, p, d: [consumer for _, consumer in _splits(s, p, d)],
    "producer_regs": lambda s, p, d: [p_ for p_, consumer in _splits(s, p, d) if consumer == s.consumer_regs],
    "swap_ab": _swap_ab,
    "held_blocks": _held_blocks,
    "stream_k": _stream_k,
    "split_k": _split_k,
    "reduction": _reduction,
    "exchange_in_ring": _exchanges_in_ring,
    "store": _store,
    "epilogue_n": _epilogue_n,
    "epilogue_buffers": _epilogue_buffers,
    "residual_buffers": _residual_buffers,
    "cluster_m": lambda s, p, d: sorted({m for m, _ in _clusters(s, p, d)}),
    "cluster_n": _cluster_n,
    "multicast_kind": lambda s, p, d: _multicast_kinds(s, p),
    "stages": lambda s, p, d: [n for n in _fitting("stages", STAGES, s, p, d) if n <= (s.held_blocks or n)],
    "mma_in_flight": lambda s, p, d: [0] if p.accumulate == PROMOTED else MMA_IN_FLIGHT,
    "evict_first": _evict_first,
    "dependent_launch": _dependent_launch,
    "clip_boxes": _clip_boxes,
    "straight_start": lambda s, p, d: [False, True],
    "early_fill": _early_fill,
    "alone_stages": _alone_stages,
    "interleave_k": lambda s, p, d: [False, True] if s.split_k > 1 else [False],
    "parts_apart": lambda s, p, d: (
        [False, True] if can_part(s) and _producer_fits(vary(s, parts_apart=True), p) else [False]
    ),
    "persistent": lambda s, p, d: _persistent(s),
    "ctas": _ctas,
    "raster": _raster,
    "swizzle": _swizzle,
    "serpentine": _serpentine,
    "k_zigzag": _k_zigzag,
    "hands": lambda s, p, d: HANDS if can_deal(s) else HANDS[:1],
    "l2_promotion": lambda s, p, d: L2_PROMOTIONS,
}
"""Every field of a schedule in the order of choosing, with the function that gives its valid values where tensor cores
multiply."""


def _valid(name: str, s: Schedule, problem: Problem, device: Device) -> Iterable[Any]:
    if s.arrangement == GEMV and name not in ("arrangement", "dependent_launch"):
        return gemv.gemv_domain(name, s, problem, device, SPLIT_K)
    return _TILED[name](s, problem, device)


DIMENSIONS: Mapping[str, _Domain] = {name: functools.partial(_valid, name) for name in _TILED}
"""Every field of a schedule in the order of choosing, with the function that gives its valid values."""


KERNEL_DIMENSIONS = tuple(name for name in DIMENSIONS if name not in LAUNCH_FIELDS)
"""The dimensions that change what is compiled."""


@functools.lru_cache(maxsize=65536)
def domain(name: str, schedule: Schedule, problem: Problem, device: Device) -> tuple[Any, ...]:
    """The valid values of dimension `name`, given the dimensions of `schedule` that are chosen before it."""
    return tuple(DIMENSIONS[name](schedule, problem, device))


def enumerate_schedules(
    problem: Problem, device: Device, start: Schedule | None = None, names: Iterable[str] = tuple(DIMENSIONS)
) -> Iterator[Schedule]:
    """Every valid schedule, lazily. The dimensions not in `names` stay as they are in `start`."""
    names = tuple(names)

    def walk(schedule: Schedule, depth: int) -> Iterator[Schedule]:
        if depth == len(names):
            yield schedule
            return
        for value in DIMENSIONS[names[depth]](schedule, problem, device):
            yield from walk(vary(schedule, **{names[depth]: value}), depth + 1)

    return walk(start or _START, 0)


def sample(problem: Problem, device: Device, rng: random.Random) -> Schedule:
    """A random valid schedule: each dimension drawn evenly from its valid values."""
    return draw(problem, device, rng)[0]


def draw(problem: Problem, device: Device, rng: random.Random) -> tuple[Schedule, float]:
    """A random valid schedule as `sample` draws it, and one over the probability of drawing it.

    The draw is far from even over the valid space: an arrangement with many variants is drawn no more often than one
    with few, and nearly all of a space's variants are of shares of K. The second value is for how many schedules the
    first stands: its mean is the size of the space, and weighted by it draws represent the space (Knuth, Estimating the
    efficiency of backtrack programs, 1975).
    """
    schedule, stands_for = _START, 1.0
    for name in DIMENSIONS:
        values = domain(name, schedule, problem, device)
        schedule = vary(schedule, **{name: rng.choice(values)})
        stands_for *= len(values)
    return schedule, stands_for


def nearest(wish: Mapping[str, Any], problem: Problem, device: Device) -> Schedule:
    """The valid schedule nearest to `wish`, dimension by dimension; one not in it gets its first valid value.

    Numbers are compared by their ratio; a word that is not valid gives way to the first valid one.
    """
    schedule = _START
    for name in DIMENSIONS:
        values = domain(name, schedule, problem, device)
        value = values[0]
        if name in wish and value != wish[name]:
            value = min(values, key=lambda v: _distance(v, wish[name]))
        if value != getattr(schedule, name):
            schedule = vary(schedule, **{name: value})
    return schedule


def neighbours(schedule: Schedule, problem: Problem, device: Device) -> list[Schedule]:
    """The valid schedules one step away: one dimension moved to an adjacent value, the others as near as valid."""
    found: dict[Schedule, None] = {}
    for name, values in ALL_VALUES.items():
        here = getattr(schedule, name)
        near = min(range(len(values)), key=lambda i: _distance(values[i], here))
        for index in (near - 1, near, near + 1):
            if 0 <= index < len(values) and values[index] != here:
                found[nearest({**schedule.to_json(), name: values[index]}, problem, device)] = None
    found.pop(schedule, None)
    return list(found)


ALL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "arrangement": tuple(CONSUMERS),
    "consumers": (1, 2, 3, 4),
    "tile_m": (*gemv.VECTORS, *TILE_M),
    "tile_n": tuple(sorted({*gemv.TILE_N, *TILE_N})),
    "tile_k": gemv.TILE_K,
    "consumer_regs": (0, 160, 232, 240),
    "load": LOADS,
    "store": STORES,
    "epilogue_n": EPILOGUE_N,
    "epilogue_buffers": EPILOGUE_BUFFERS,
    "residual_buffers": RESIDUAL_BUFFERS,
    "cluster_m": (1, 2, 4, 8),
    "cluster_n": (1, 2, 4, 8),
    "multicast_kind": MULTICAST_KINDS,
    "stages": STAGES,
    "mma_in_flight": MMA_IN_FLIGHT,
    "persistent": (False, True),
    "ctas": (0, 128),
    "raster": RASTERS,
    "swizzle": SWIZZLES,
    "serpentine": (False, True),
    "k_zigzag": (False, True),
    "swap_ab": (False, True),
    "split_k": SPLIT_K,
    "reduction": REDUCTIONS,
    "stream_k": (False, True),
    "evict_first": EVICT_FIRST,
    "dependent_launch": DEPENDENT_LAUNCH["weights"],
    "l2_promotion": L2_PROMOTIONS,
    "clip_boxes": (False, True),
    "straight_start": (False, True),
    "early_fill": (False, True),
    "alone_stages": ALONE_STAGES,
    "interleave_k": (False, True),
    "exchange_in_ring": (False, True),
    "held_blocks": HELD_BLOCKS,
    "parts_apart": (False, True),
    "hands": HANDS,
}


def _distance(value: Any, wish: Any) -> float:
    if isinstance(value, (str, bool)) or isinstance(wish, (str, bool)):
        return 0.0 if value == wish else math.inf
    return abs(math.log((value + 0.5) / (max(wish, 0) + 0.5)))
