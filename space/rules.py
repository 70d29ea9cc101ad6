"""The rules that make a schedule valid: the one pure function that space, codegen, tables and queries call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from . import gemv
from .device import Device
from .errors import BadInput
from .problem import DTYPE_BYTES, FAST, OUT_DTYPE_BYTES, PROMOTED, TMA_ALIGNMENT, Problem
from .resources import (
    SWIZZLE_BYTES,
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
from .schedule import COOPERATIVE, GEMV, PINGPONG, Schedule
from .tiles import ceil_div, tile_grid

LARGEST_EXTENT = 2**31 - 4096
"""Largest m, n or k of a kernel: the last cluster of tiles must still have 32-bit coordinates where it ends."""

LARGEST_OUTPUT = 2**39
"""Most elements of D, in all products of a batch and rounded up to whole clusters of the largest tiles: tiles of any
size are then numbered in 32 bits."""

CLUSTER_TILE = 512
"""Rows, and columns, that every extent of a cluster of the smallest tiles divides (64 x 8, 8 x 8 columns)."""

CONSUMERS = {COOPERATIVE: (1, 2, 3), PINGPONG: (2,), GEMV: gemv.CONSUMERS}
TILE_M = (64, 128, 192, 256)
TILE_N = tuple(range(8, 257, 8))
TILE_K = (64, 128, 256)
STAGES = tuple(range(2, 17))
MMA_IN_FLIGHT = (0, 1)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (2, 4), (4, 2), (8, 1), (1, 8))
MULTICAST_KINDS = ("slice", "rotate", "leader")
RASTERS = ("m", "n")
SWIZZLES = (1, 2, 4, 8, 16, 32)
LOADS = ("tma", "copy")
COPIED_BYTES = 2
"""Bytes of the elements that threads copy where TMA does not take the rows."""
STORES = ("tma", "direct", "copy")
EPILOGUE_N = (16, 32, 64)
EPILOGUE_BUFFERS = (1, 2, 4)
SPLIT_K = (*range(1, 17), 18, 20, 22, 24, 26, 30, 32, 33, 40, 44, 48, 60, 64, 66)
"""Up to 16 all; beyond, those by which few tiles fill the 132 SMs of an H200, or the 120 in clusters of 4 and 8."""

HELD_BLOCKS = (0, *range(2, 17))
HANDS = (1, 2, 4, 8)
MAX_CLUSTER = 16
"""CTAs of the largest cluster of Hopper, which a kernel must ask for beyond 8."""

PAIR = 2
"""CTAs of a cluster that all SMs hold at once: they come in pairs. Of larger ones some SMs are left over."""

REDUCTIONS = ("cluster", "slots", "atomic", "shares")
ALONE_STAGES = (0, 1, 2, 4)
EVICT_FIRST = ("", "a", "b")
RESIDUAL_BUFFERS = (0, 1, 2, 4)
L2_PROMOTIONS = (0, 64, 128, 256)
DEPENDENT_LAUNCH = {"none": ("",), "launch": ("", "wait"), "weights": ("", "wait", "weights")}
"""What each `Problem.overlap` allows: a kernel may run ahead only as far as its operands are ready."""

_TILED_VALUES: Mapping[str, tuple[object, ...]] = {
    "tile_m": TILE_M,
    "tile_n": TILE_N,
    "tile_k": TILE_K,
    "stages": STAGES,
    "mma_in_flight": MMA_IN_FLIGHT,
    "multicast_kind": MULTICAST_KINDS,
    "raster": RASTERS,
    "swizzle": SWIZZLES,
    "load": LOADS,
    "store": STORES,
    "epilogue_n": EPILOGUE_N,
    "epilogue_buffers": EPILOGUE_BUFFERS,
    "alone_stages": ALONE_STAGES,
    "split_k": SPLIT_K,
    "held_blocks": HELD_BLOCKS,
    "hands": HANDS,
    "reduction": REDUCTIONS,
    "evict_first": EVICT_FIRST,
    "dependent_launch": DEPENDENT_LAUNCH["weights"],
    "l2_promotion": L2_PROMOTIONS,
    "residual_buffers": RESIDUAL_BUFFERS,
}
_GEMV_VALUES: Mapping[str, tuple[object, ...]] = {
    **_TILED_VALUES,
    "tile_m": gemv.VECTORS,
    "tile_n": gemv.TILE_N,
    "tile_k": gemv.TILE_K,
    "stages": gemv.STAGES,
}
"""Values of the dimensions, whatever the others are."""

MULTICAST_ROWS = 8
"""Rows of the smallest slice of an operand tile that one CTA loads for its peers: one swizzle pattern."""


def violations(problem: Problem, schedule: Schedule, device: Device) -> list[str]:
    """Every reason, in words, why `schedule` cannot run `problem` on `device`; empty when it can."""
    return [*unsupported(problem, device), *misfits(problem, schedule, device)]


def misfits(problem: Problem, schedule: Schedule, device: Device) -> Iterator[str]:
    """The reasons that are not the problem's alone, one at a time: whoever asks for one does not wait for the others.
    For a problem that some schedule can run (`unsupported`)."""
    values = list(_values(schedule))
    yield from values
    if not values:
        yield from _promises(problem, schedule)
        rules = gemv.gemv_violations if schedule.arrangement == GEMV else _combinations
        yield from rules(problem, schedule, device)


def read_schedule(obj: Mapping[str, Any]) -> Schedule:
    """The schedule of a line of a journal or of an entry of a table. What comes from there goes into arithmetic that is
    made for the values of the space, long before anything runs.

    Raises:
        BadInput: it is no schedule, or one with a value that is in no dimension, or threads that share nothing evenly.
    """
    schedule = Schedule.from_json(obj)
    shares = gemv.slice_problems(schedule) if schedule.arrangement == GEMV else ()
    for reason in itertools.chain(_values(schedule), shares):
        raise BadInput(f"schedule {schedule.name}: {reason}")
    return schedule


def unsupported(problem: Problem, device: Device) -> Iterator[str]:
    """Every reason why no schedule at all can run `problem` on `device`."""
    if device.cc != "9.0":
        yield f"the device {device.name} has compute capability {device.cc}: kernels are made for 9.0 (Hopper)"
    element, out = DTYPE_BYTES[problem.dtype], OUT_DTYPE_BYTES[problem.out_dtype]
    if element == 1 and problem.layout != "nt":
        yield f"layout {problem.layout} of {problem.dtype}: valid is nt, wgmma reads 8-bit operands along k alone"
    if out == 1 and element != 1:
        yield f"out_dtype {problem.out_dtype} of {problem.dtype} operands: valid are bf16, fp16, fp32"
    if out == 1 and problem.fused.residual:
        yield f"a residual of out_dtype {problem.out_dtype} has no kernel yet: valid are bf16, fp16, fp32"
    if problem.accumulate != FAST and element != 1:
        yield f"accumulate {problem.accumulate} of {problem.dtype}: valid is {FAST}, whose sums are float32"
    for axis in ("m", "n", "k"):
        if (extent := getattr(problem, axis)) > LARGEST_EXTENT:
            yield f"{axis} = {extent} is beyond 32-bit coordinates: valid is at most {LARGEST_EXTENT}"
    covered = problem.batch * math.prod(ceil_div(e, CLUSTER_TILE) * CLUSTER_TILE for e in (problem.m, problem.n))
    if covered > LARGEST_OUTPUT:
        yield (
            f"m x n x batch is {covered} in whole clusters, beyond what a grid numbers:"
            f" valid is at most {LARGEST_OUTPUT}"
        )
    fused = problem.fused
    for matrix, size in (("a", element), ("b", element), ("d", out)):
        if not copied(problem, matrix):
            continue
        rows = f"rows of {matrix.upper()} lie at multiples of {problem.alignment(matrix)} bytes: valid are multiples"
        if size != COPIED_BYTES:
            yield f"{rows} of {TMA_ALIGNMENT} for elements of other than 16 bits"
        elif fused.gated or (fused.aux and matrix == "d"):
            yield f"{rows} of {TMA_ALIGNMENT} with the epilogue {problem.epilogue}"


def _values(s: Schedule) -> Iterator[str]:
    """Fields whose value is not in their dimension, whatever the others are."""
    if s.arrangement not in CONSUMERS:
        yield f"arrangement {s.arrangement}: valid are {', '.join(CONSUMERS)}"
    elif s.consumers not in CONSUMERS[s.arrangement]:
        yield f"{s.consumers} consumer warpgroups in {s.arrangement}: valid are {_list(CONSUMERS[s.arrangement])}"
    for name, valid in (_GEMV_VALUES if s.arrangement == GEMV else _TILED_VALUES).items():
        if getattr(s, name) not in valid:
            yield f"{name} {getattr(s, name)}: valid are {_list(valid)}"
    for name in ("ctas", "producer_regs", "consumer_regs"):
        if (count := getattr(s, name)) < 0:
            yield f"{name} {count}: valid is 0 or more"
    if (s.cluster_m, s.cluster_n) not in CLUSTERS:
        clusters = ", ".join(f"{m}x{n}" for m, n in CLUSTERS)
        yield f"cluster {s.cluster_m}x{s.cluster_n}: valid are {clusters}"


def _promises(problem: Problem, s: Schedule) -> Iterator[str]:
    """What the problem asks of any schedule."""
    if problem.deterministic and s.numerics != "deterministic":
        valid = ", ".join(r for r in REDUCTIONS if r != s.reduction)
        yield f"reduction {s.reduction} where the problem is deterministic: valid are {valid}"
    if s.dependent_launch not in (allowed := DEPENDENT_LAUNCH[problem.overlap]):
        words = ", ".join(map(repr, allowed))
        yield f"dependent_launch {s.dependent_launch!r} where the overlap is {problem.overlap}: valid are {words}"


def _combinations(problem: Problem, s: Schedule, device: Device) -> Iterator[str]:
    """Fields that are valid alone and not together, or not on this device."""
    if s.tile_k not in (valid := tile_ks(problem)):
        yield f"tile_k {s.tile_k} of {problem.dtype} ends inside a row of a slab: valid are {_list(valid)}"
    if not stored_whole(problem, tile_columns(problem, s)):
        yield f"tile_n {s.tile_n} of {problem.out_dtype} rows: valid are multiples of {TMA_ALIGNMENT} bytes"
    if s.mma_in_flight and problem.accumulate == PROMOTED:
        yield f"mma_in_flight {s.mma_in_flight} with promoted sums: valid is 0, sums are awaited to be added up"
    rows = 64 * s.warpgroups_per_tile
    if s.tile_m % rows:
        yield f"tile_m {s.tile_m} for {s.warpgroups_per_tile} warpgroups a tile: valid are multiples of {rows}"
    for dimension, tile in zip(("tile_m", "tile_n"), operand_tiles(problem, s), strict=True):
        boxes = tile.slices * tile.slab_boxes
        if tile.slab_rows % (MULTICAST_ROWS * boxes):
            halves = f" of {tile.halves} halves" if tile.slab_boxes > 1 else ""
            yield (
                f"{dimension} {tile.extent}{halves} sliced over {tile.slices} CTAs:"
                f" valid are multiples of {MULTICAST_ROWS * boxes}"
            )
        slab = SWIZZLE_BYTES // DTYPE_BYTES[problem.dtype]
        if tile.halves > 1 and not tile.k_major and tile.extent % (slab * tile.halves):
            yield (
                f"{dimension} {tile.extent} for a gate and its up from an operand that is not K-major:"
                f" valid are multiples of {slab * tile.halves}"
            )
    if s.multicast_kind != "slice" and not s.multicast:
        yield f"multicast_kind {s.multicast_kind} without a cluster: valid is slice, the default"
    splits = register_splits(s)
    if (s.producer_regs, s.consumer_regs) not in splits:
        words = ", ".join(f"{p}-{c}" for p, c in splits)
        yield f"registers {s.producer_regs}-{s.consumer_regs} for {s.consumers} consumers: valid are {words}"
    elif s.accumulators > (most := max_accumulators(problem, s, device.registers_per_sm)):
        yield f"{s.accumulators} accumulator registers a thread: valid is at most {most} with this register split"
    if s.producer_regs == 24 and (extras := producer_extras(problem, s)):
        yield f"24 registers for a producer with {' and '.join(extras)}: valid are 0 or 40, 24 would spill"
    if s.ctas:
        resident = device.sm_count
        if not s.persistent:
            yield f"{s.ctas} CTAs without persistence: valid is 0 (one for each tile)"
        elif s.ctas % s.cluster_size or not 0 < s.ctas <= resident:
            yield f"{s.ctas} CTAs: valid are multiples of the cluster size {s.cluster_size} up to {resident}"
    if s.k_zigzag and not s.persistent:
        yield "k_zigzag without persistence: valid is a persistent kernel"
    if s.residual_buffers:
        if not problem.fused.residual:
            yield f"{s.residual_buffers} residual buffers without a residual: valid is 0"
        if s.workspace:
            yield f"{s.residual_buffers} residual buffers with a workspace: valid is 0"
        if not transposes_residual(problem):
            yield f"{s.residual_buffers} residual buffers of {problem.out_dtype}: valid is 0, ldmatrix moves 16 bits"
    elif problem.fused.residual and s.swap_ab:
        yield "a residual read from device memory with swap_ab: valid are residual buffers, which transpose it"
    if s.clip_boxes and not any(t.k_major and t.sharers == 1 for t in operand_tiles(problem, s)):
        yield "clip_boxes without an operand that is contiguous along k and not shared: valid is False"
    if s.swap_ab and problem.fused.gated:
        yield "a gated epilogue with swap_ab: valid is without, a gate and its up are then in the same thread"
    if s.held_blocks:
        yield from _held(problem, s)
    if s.hands > 1 and not can_deal(s):
        yield f"hands {s.hands} without persistence, with a shared K or held_blocks: valid is 1"
    if s.alone_stages and not can_fill_alone(s):
        yield (
            f"alone_stages {s.alone_stages} without a cluster that multicasts or straight_start, or with early_fill, a"
            " dependent launch or loads by threads: valid is 0"
        )
    elif s.alone_stages not in (valid := alone_counts(problem, s)):
        batch = " of a batch" * problem.batched
        yield f"alone_stages {s.alone_stages} of {s.stages} stages{batch}: valid are {_list(valid)}"
    if s.early_fill and not can_fill_early(s):
        yield "early_fill without straight_start, with two shared operands, copies or dependent_launch: valid is False"
    yield from _copies(problem, s)
    if s.swap_ab and s.store == "direct":
        yield "direct stores with swap_ab: valid are tma and copy, which transpose"
    yield from _shared_k(problem, s, device)
    if s.store == "direct" and problem.epilogue != "none":
        yield f"direct stores with the epilogue {problem.epilogue}: valid is the store tma"
    if s.store == "direct":
        if (s.epilogue_n, s.epilogue_buffers) != (64, 2):
            yield "an epilogue chunk with direct stores: valid is the default 64x2, which they do not use"
    else:
        columns = tile_columns(problem, s)
        stores = piece_count(problem, s) * stores_per_piece(problem)
        if s.epilogue_n > max(columns, EPILOGUE_N[0]):
            halves = " in two halves" * problem.fused.gated
            yield f"epilogue_n {s.epilogue_n} for tile_n {s.tile_n}{halves}: valid is at most the tile"
        elif s.epilogue_n not in (valid := epilogue_ns(problem, s)):
            yield f"epilogue_n {s.epilogue_n} of {problem.out_dtype}: valid are {_list(valid)}"
        elif s.epilogue_buffers > stores:
            yield f"{s.epilogue_buffers} epilogue buffers for {stores} chunks: valid is at most one for each"
    need = shared_memory(problem, s).total
    if need > device.smem_per_cta:
        yield f"{need} bytes of shared memory: valid is at most {device.smem_per_cta}"
    if (ctas := tile_grid(problem, s).ctas) > 2**31 - 1:
        yield f"{ctas} tiles: valid is at most {2**31 - 1}, which larger tiles give"


def can_hold(s: Schedule) -> bool:
    """Whether the choices so far leave the column operand in place from tile to tile: for a CTA that loads it alone,
    by TMA, and computes whole tiles."""
    return s.load == "tma" and not s.multicast and s.split_k == 1 and not s.stream_k and s.dependent_launch != "weights"


def can_deal(s: Schedule) -> bool:
    """Whether the tiles at which persistent CTAs begin may be dealt in several hands: CTAs that share the K of a tile
    have places of their own."""
    return s.persistent and s.split_k == 1 and not s.stream_k and not s.held_blocks


def _held(problem: Problem, s: Schedule) -> Iterator[str]:
    """A column operand that stays in shared memory."""
    held = f"held_blocks {s.held_blocks}"
    blocks = tile_grid(problem, s).k_blocks
    if s.held_blocks != blocks:
        valid = f"{blocks} or 0" if blocks in HELD_BLOCKS else "0"
        yield f"{held} of {blocks} k-blocks: valid is {valid}"
    if s.stages > s.held_blocks:
        # A k-block that is replaced has then been handed back with its stage.
        yield f"{held} with {s.stages} stages: valid are at most as many stages"
    if not can_hold(s):
        yield f"{held} with clusters, a shared K, copies or early weights: valid is 0"
    if not s.persistent or s.raster != "m":
        yield f"{held} where tiles do not follow each other along m: valid is a persistent kernel with raster m"
    if s.k_zigzag or s.clip_boxes:
        yield f"{held} with k_zigzag or clip_boxes: valid is without"


def _copies(problem: Problem, s: Schedule) -> Iterator[str]:
    """What threads copy, because TMA does not take the rows or for no reason."""
    if s.load != (load := load_of(problem)):
        rows = " and ".join(f"{matrix.upper()} {problem.alignment(matrix)}" for matrix in "ab")
        yield f"load {s.load} of rows at multiples of bytes, of {rows}: valid is {load}"
    elif load == "copy":
        for name, value in (
            ("evict_first", s.evict_first),
            ("residual_buffers", s.residual_buffers),
            ("clip_boxes", s.clip_boxes),
        ):
            if value:
                yield f"{name} {value} with the load copy: valid is without, all threads of the producer copy"
        if s.multicast:
            yield f"cluster {s.cluster_m}x{s.cluster_n} with the load copy: valid is 1x1, only TMA multicasts"
        if s.dependent_launch == "weights":
            yield "dependent_launch weights with the load copy: valid is wait"
    if copied(problem, "d") != (s.store == "copy"):
        valid = "copy" if copied(problem, "d") else "tma or direct"
        yield f"store {s.store} of rows at multiples of {problem.alignment('d')} bytes: valid is {valid}"
    elif s.store == "copy" and s.residual_buffers:
        yield f"{s.residual_buffers} residual buffers with the store copy: valid is 0, TMA does not take the rows"


def can_fill_early(s: Schedule) -> bool:
    """Whether the first round of stages may be asked for before all else: of an operand that no CTA shares, not waiting
    for the kernel ahead, and by one thread."""
    alone = s.cluster_m == 1 or s.cluster_n == 1
    return s.straight_start and s.load == "tma" and alone and not s.dependent_launch


def can_fill_alone(s: Schedule) -> bool:
    """Whether the CTAs of a cluster may fill their first stages themselves: of operands that they share later, not
    waiting for the kernel ahead, and by one thread."""
    return s.multicast and s.straight_start and s.load == "tma" and not s.early_fill and not s.dependent_launch


def alone_counts(problem: Problem, s: Schedule) -> tuple[int, ...]:
    """Values of `alone_stages` that the ring has room for. With a batch the compiler makes straight code of a single
    stage and leaves the K loop to move registers, found by compiling."""
    return tuple(n for n in ALONE_STAGES if n <= s.stages and not (n == 1 and problem.batched))


def _shared_k(problem: Problem, s: Schedule, device: Device) -> Iterator[str]:
    """Tiles whose K several CTAs share."""
    shared = s.split_k > 1 or s.stream_k
    if s.exchange_in_ring and not s.split_cluster:
        yield "exchange_in_ring without a split_k whose parts meet in a cluster: valid is False"
    if s.exchange_in_ring and s.residual_buffers:
        # Loader warps that wait for a free chunk would keep the cluster from meeting.
        yield f"exchange_in_ring with {s.residual_buffers} residual buffers: valid is False"
    if s.interleave_k and s.split_k == 1:
        yield "interleave_k without split_k: valid is False"
    if s.parts_apart and not can_part(s):
        yield "parts_apart where CTAs share loads, or without a K that is shared in device memory: valid is False"
    if not shared:
        if s.workspace:
            yield f"reduction {s.reduction} of whole tiles: valid is cluster, the default, which then does nothing"
        return
    grid = tile_grid(problem, s)
    if s.arrangement == PINGPONG:
        yield f"tiles that share K in ping-pong: valid is {COOPERATIVE}"
    if grid.k_blocks * s.split_k >= 2**31:
        yield f"split_k {s.split_k} of {grid.k_blocks} k-blocks: valid is a product below 2^31"
    if s.split_k > grid.k_blocks:
        yield f"split_k {s.split_k} of {grid.k_blocks} k-blocks: valid is at most one CTA for each"
    if s.stream_k:
        if s.split_k > 1:
            yield f"split_k {s.split_k} with stream_k: valid is 1, stream-K cuts tiles itself"
        if s.reduction != "slots":
            yield f"reduction {s.reduction} with stream_k: valid is slots"
        if not s.persistent:
            yield "stream_k without persistence: valid is a persistent kernel"
        if grid.k_blocks * 2 * device.sm_count**2 >= 2**32:
            yield f"stream_k over {grid.k_blocks} k-blocks a tile: valid are fewer than {2**31 // device.sm_count**2}"
        if (blocks := grid.ctas * grid.k_blocks) < device.sm_count:
            yield f"stream_k over {blocks} k-blocks: valid is at least one for each of {device.sm_count} SMs"
    elif s.reduction == "shares":
        yield from split_too_far(problem, s, device)
        yield from _dealt(s)
    elif s.split_cluster:
        if s.split_k > MAX_CLUSTER:
            yield f"split_k {s.split_k} of a cluster: valid is at most {MAX_CLUSTER}"
        yield from _dealt(s)


def can_part(s: Schedule) -> bool:
    """Whether the CTAs that share the K of a tile may be launched apart: in a cluster they come together, and loads
    for several CTAs are hardly ever put together with others."""
    return s.split_k > 1 and s.workspace and not s.multicast


def split_too_far(problem: Problem, s: Schedule, device: Device) -> Iterator[str]:
    """Parts that wait for each other in device memory: all their CTAs run at the same time."""
    if s.reduction != "shares" or s.split_k == 1:
        return
    if (ctas := tile_grid(problem, s).ctas) > device.sm_count:
        yield f"reduction shares on {ctas} CTAs: valid is at most one for each of {device.sm_count} SMs"
    if s.cluster_m * s.cluster_n > PAIR:
        yield f"reduction shares with cluster {s.cluster_m}x{s.cluster_n}: valid are 1x1, 2x1 and 1x2"


def _dealt(s: Schedule) -> Iterator[str]:
    """Pieces of a tile that are dealt to the CTAs that share its K: all of these are there at the same time."""
    split = f"split_k {s.split_k} {'of a cluster' if s.split_cluster else 'by shares'}"
    if s.persistent:
        yield f"{split} in a persistent kernel: valid is one tile per CTA"
    if s.multicast and s.split_cluster:
        yield f"split_k {s.split_k} with cluster {s.cluster_m}x{s.cluster_n}: valid is 1x1 for {s.reduction}"
    if s.store == "direct":
        yield f"{split} with direct stores: valid is the store tma"


def tile_ks(problem: Problem) -> tuple[int, ...]:
    """Values of `tile_k` that are whole rows of an operand's slab."""
    return tuple(k for k in TILE_K if k * DTYPE_BYTES[problem.dtype] % SWIZZLE_BYTES == 0)


def stored_whole(problem: Problem, tile_n: int) -> bool:
    """Whether TMA can store every piece of `tile_n` columns: the narrowest is a multiple of 16 bytes."""
    return tile_n * OUT_DTYPE_BYTES[problem.out_dtype] % TMA_ALIGNMENT == 0


def epilogue_ns(problem: Problem, s: Schedule) -> tuple[int, ...]:
    """Values of `epilogue_n` whose rows in shared memory a swizzle covers; transposed, rows are 64 elements anyway."""
    widest = SWIZZLE_BYTES // OUT_DTYPE_BYTES[problem.out_dtype]
    return EPILOGUE_N if s.swap_ab else tuple(n for n in EPILOGUE_N if n <= widest)


def transposes_residual(problem: Problem) -> bool:
    """Whether chunks of a residual can be read as the accumulators lie, by ldmatrix."""
    return OUT_DTYPE_BYTES[problem.out_dtype] == 2


def fetches_residual(problem: Problem, s: Schedule) -> bool:
    """Whether loader warps can bring a residual, if there is one: ldmatrix reads its elements, TMA takes its rows, and
    the warps have nothing else to do."""
    return transposes_residual(problem) and s.load == "tma" and not copied(problem, "d")


def _list(values: tuple[object, ...]) -> str:
    """Values in words; of more than eight that are evenly apart the first two and the last."""
    numbers = [value for value in values if isinstance(value, int)]
    even = len(numbers) == len(values) and len({b - a for a, b in itertools.pairwise(numbers)}) == 1
    if len(values) > 8 and even:
        return f"{values[0]}, {values[1]}, ... {values[-1]}"
    return ", ".join(map(str, values))
