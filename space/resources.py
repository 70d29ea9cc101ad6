"""What a schedule takes of an SM: shared memory and registers. Codegen lays memory out by the same numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from .device import REGISTERS_PER_SM
from .gemv import gemv_smem_bytes
from .problem import DTYPE_BYTES, OUT_DTYPE_BYTES, PROMOTED, PROMOTED_K, TMA_ALIGNMENT, Problem
from .schedule import GEMV, PINGPONG, Schedule, vary
from .tiles import kernel_extents

SWIZZLE_BYTES = 128
"""Bytes in one row of an operand slab: the widest swizzle of TMA and wgmma."""

SWIZZLE_ROWS = 8
"""Rows after which that swizzle repeats."""

WGMMA_K_BYTES = 32
"""Bytes of K that one wgmma consumes of each operand row (k16 of 16-bit elements)."""

MBARRIER_BYTES = 8

ACCUMULATOR_BYTES = 4

REGISTER_OVERHEAD = 40
"""Registers a consumer thread needs beside its accumulators, found by compiling the space: at 24/240 a tile of
200 accumulators compiles without spills and 208 does not (ptxas 13.0)."""

REDUCTION_OVERHEAD = {"slots": 8, "atomic": 8, "cluster": 12, "shares": 28}
"""Registers that adding up the parts of a split K takes beside those (found likewise)."""

MOST_IN_SHARES = 128
"""Accumulators that a consumer thread has at most where parts are added up by `shares` and an epilogue follows, or one
warpgroup computes the tile (found likewise: 136 spill with 232 registers, 144 with 255)."""

FUSED_REDUCTION_OVERHEAD = 16
"""Registers that it takes in addition where an epilogue follows."""

GATE_OVERHEAD, MATRIX_OVERHEAD = 32, 8
"""Registers that a gate takes beside those, or a residual after an activation; and a residual without one or an
auxiliary output (found likewise). The rest of an epilogue takes none."""

COPY_OVERHEAD = 12
"""Registers that threads take beside those which copy chunks to D (found likewise)."""


@dataclass(frozen=True, slots=True)
class OperandTile:
    """One operand's tile of a stage: slabs with rows of 128 bytes, as TMA writes and wgmma reads them.

    K-major: a slab is 128 bytes of K wide and has a row for each row of the tile. MN-major: a slab is 128 bytes of
    the tile's rows (or columns) wide and has a row for each k; a tile that ends inside a slab still fills it.
    """

    operand: str
    """Which operand of the problem it is: `a` or `b`."""
    k_major: bool
    extent: int
    """Rows or columns of the CTA tile."""
    slabs: int
    slab_rows: int
    sharers: int
    """CTAs of a cluster that share the tile."""
    slices: int
    """Parts of the rows of every slab in which they load it: one for each, or the whole by the first of them."""
    halves: int = 1
    """2 where the tile is two ranges of the operand, a half of the product apart: those of a gate and of its up."""

    @property
    def slab_boxes(self) -> int:
        """Boxes in which a slab is loaded, or a slice of it: K-major slabs have rows of both halves, MN-major ones are
        of one."""
        return self.halves if self.k_major else 1

    @property
    def slab_bytes(self) -> int:
        """Bytes of one slab."""
        return self.slab_rows * SWIZZLE_BYTES

    @property
    def stage_bytes(self) -> int:
        """Bytes of the operand in one stage."""
        return self.slabs * self.slab_bytes


def operand_tiles(problem: Problem, schedule: Schedule) -> tuple[OperandTile, OperandTile]:
    """The tiles of the kernel's row operand and of its column operand (B and A of the problem with `swap_ab`)."""
    rows, columns = schedule.operands
    row_major, column_major = (
        (problem.b_major, problem.a_major) if schedule.swap_ab else (problem.a_major, problem.b_major)
    )
    wide, k = SWIZZLE_BYTES // DTYPE_BYTES[problem.dtype], schedule.tile_k
    sliced, halves = schedule.multicast_kind == "slice", 2 if problem.fused.gated else 1
    return (
        _operand_tile(rows, row_major == "k", schedule.tile_m, k, wide, schedule.cluster_n, sliced),
        _operand_tile(columns, column_major == "k", schedule.tile_n, k, wide, schedule.cluster_m, sliced, halves),
    )


@functools.cache
def _operand_tile(
    operand: str, k_major: bool, extent: int, tile_k: int, wide: int, sharers: int, sliced: bool, halves: int = 1
) -> OperandTile:
    """A tile in slabs that are `wide` elements across. There are few, and rules ask for them often."""
    across, along = (tile_k, extent) if k_major else (extent, tile_k)
    return OperandTile(operand, k_major, extent, -(-across // wide), along, sharers, sharers if sliced else 1, halves)


def loaded_rows(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """Rows of every slab of the row operand and of the column operand that the CTAs load together.

    With `clip_boxes` only those that hold something, in whole groups of the eight that the swizzle repeats after: of an
    operand that is contiguous along K, whose extent is below the tile's, and that no other CTA shares. Of two halves
    that much each.
    """

    def rows(tile: OperandTile, extent: int) -> int:
        clipped = schedule.clip_boxes and tile.k_major and tile.sharers == 1
        rounded = -(-extent // (tile.halves * SWIZZLE_ROWS)) * tile.halves * SWIZZLE_ROWS
        return min(tile.slab_rows, rounded) if clipped else tile.slab_rows

    row_tile, column_tile = operand_tiles(problem, schedule)
    row_extent, column_extent = kernel_extents(problem, schedule)
    return rows(row_tile, row_extent), rows(column_tile, column_extent)


def can_clip(problem: Problem, schedule: Schedule) -> bool:
    """Whether `clip_boxes` would load less."""
    rows, columns = kernel_extents(problem, schedule)
    if schedule.arrangement == GEMV or (schedule.tile_m <= rows and schedule.tile_n <= columns):
        return False
    clipped = vary(schedule, clip_boxes=True)
    return loaded_rows(problem, clipped) != tuple(tile.slab_rows for tile in operand_tiles(problem, schedule))


class SharedMemory(NamedTuple):
    """Byte offsets into dynamic shared memory, in order; `total` is what a launch asks for."""

    a: int
    b: int
    epilogue: int
    residual: int
    bias: int
    scales: int
    """Vectors of scales, in fp32."""
    exchange: int
    barriers: int
    votes: int
    """One word for each consumer warpgroup, where the last to arrive in device memory adds up."""
    total: int


def shared_memory(problem: Problem, schedule: Schedule) -> SharedMemory:
    """The layout of shared memory: operand rings, epilogue chunks of every consumer, partial sums from the CTAs
    that share K, mbarriers. With `gemv` partial sums are all there is."""
    if schedule.arrangement == GEMV:
        total = gemv_smem_bytes(problem, schedule)
        return SharedMemory(0, 0, 0, 0, 0, 0, 0, total, total, total)
    row_tile, column_tile = operand_tiles(problem, schedule)
    chunk = chunk_bytes(problem, schedule) if schedule.staged else 0
    slot = 64 * schedule.epilogue_n * ACCUMULATOR_BYTES
    exchanged = slot * exchange_slots(problem, schedule) * schedule.consumers
    b = row_tile.stage_bytes * schedule.stages
    epilogue = b + column_tile.stage_bytes * (schedule.held_blocks or schedule.stages)
    if schedule.exchange_in_ring:
        epilogue = max(epilogue, exchanged)
    residual = epilogue + chunk * schedule.epilogue_buffers * schedule.consumers
    bias = residual + chunk * schedule.residual_buffers * schedule.consumers
    scales = bias + bias_bytes(problem, schedule) * schedule.consumers
    end = scales + scale_bytes(problem, schedule) * schedule.consumers
    exchange, barriers = (0, end) if schedule.exchange_in_ring else (end, end + exchanged)
    rings = schedule.stages + schedule.residual_buffers * schedule.consumers
    votes = barriers + (2 * rings + schedule.split_cluster) * MBARRIER_BYTES
    total = votes + (4 * schedule.consumers if schedule.workspace and not schedule.dealt else 0)
    return SharedMemory(0, b, epilogue, residual, bias, scales, exchange, barriers, votes, total)


def chunk_bytes(problem: Problem, schedule: Schedule) -> int:
    """Bytes of one chunk of the epilogue: up to `epilogue_n` columns of 64 rows, in D's dtype."""
    return 64 * schedule.epilogue_n * OUT_DTYPE_BYTES[problem.out_dtype]


def boxes_of_a_piece(problem: Problem, schedule: Schedule) -> int:
    """TMA stores of one piece. A swizzled row has at most 128 bytes: of a transposed piece, whose rows are 64 elements,
    fp32 takes two."""
    return -(-64 * OUT_DTYPE_BYTES[problem.out_dtype] // SWIZZLE_BYTES) if schedule.swap_ab else 1


def wgmma_groups(problem: Problem, schedule: Schedule) -> int:
    """Groups of wgmmas of one k-block: one, or one for each PROMOTED_K where their sums are added up in float32."""
    return schedule.tile_k // PROMOTED_K if problem.accumulate == PROMOTED else 1


def bias_bytes(problem: Problem, schedule: Schedule) -> int:
    """Bytes that a consumer warpgroup keeps of a bias in fp32: for its columns, or its rows."""
    axis = problem.fused.bias
    if not axis:
        return 0
    along_rows = (axis == "m") != schedule.swap_ab
    return ACCUMULATOR_BYTES * (64 * schedule.m64_per_warpgroup if along_rows else schedule.tile_n)


def scale_bytes(problem: Problem, schedule: Schedule) -> int:
    """Bytes that a consumer warpgroup keeps of vectors of scales, for its rows or columns."""
    scales = problem.fused.scales
    if not scales:
        return 0
    rows, columns = 64 * schedule.m64_per_warpgroup, schedule.tile_n
    along = {"scale": 0, "scale_m": rows, "scale_n": columns}
    if schedule.swap_ab:
        along |= {"scale_m": columns, "scale_n": rows}
    return ACCUMULATOR_BYTES * sum(along[word] for word in scales)


def exchange_slots(problem: Problem, schedule: Schedule) -> int:
    """Pieces of partial sums a consumer warpgroup receives at most: the CTAs that share K own its pieces in turn, each
    with both halves where one gates the other."""
    if not schedule.split_cluster:
        return 0
    halves = 2 if problem.fused.gated else 1
    return (schedule.split_k - 1) * -(-piece_count(problem, schedule) // schedule.split_k) * halves


def launch_registers(threads: int, registers_per_sm: int) -> int:
    """Registers a thread starts with when one CTA of `threads` takes a whole SM.

    A multiple of 8, at most 255; measured on ptxas 13.0: 168 for 384 threads, 128 for 512.
    """
    return min(255, registers_per_sm // threads // 8 * 8)


def copied(problem: Problem, matrix: str) -> bool:
    """Whether the rows of a matrix (`a`, `b`; `d` and a residual) lie where TMA does not take them, so that threads
    have to copy them."""
    return problem.alignment(matrix) < TMA_ALIGNMENT


def load_of(problem: Problem) -> str:
    """How operands are loaded: the value of `Schedule.load` that is valid."""
    return "copy" if copied(problem, "a") or copied(problem, "b") else "tma"


def register_splits(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The (producer, consumer) registers offered for setmaxnreg; (0, 0) leaves the launch registers, which a producer
    that copies needs.

    The sums stay within the pool the CTA was launched with (504 for two consumers, 512 for three). One consumer
    starts with all it can address and has nothing to gain.
    """
    if schedule.load == "copy":
        return ((0, 0),)
    return {
        1: ((0, 0),),
        2: ((0, 0), (24, 240), (40, 232)),
        3: ((0, 0), (32, 160)),
    }[schedule.consumers]


def producer_extras(problem: Problem, schedule: Schedule) -> list[str]:
    """What makes the producer need more than 24 registers, found by compiling the space: a walk over shares of
    k-blocks, or over parts of tiles that are launched apart; peers for both operands; peers for one, or a share of the
    K of a product of a batch, together with one of the others; or a share of the K of a gate and its up, whose loads
    differ, together with `evict_first`."""
    if schedule.stream_k:
        return ["stream_k"]
    if schedule.residual_buffers:
        return ["residual_buffers"]
    if schedule.parts_apart:
        return ["parts_apart"]
    if schedule.cluster_m > 1 and schedule.cluster_n > 1:
        return ["a cluster along both axes"]
    extras = {
        "evict_first": bool(schedule.evict_first),
        "dependent_launch": bool(schedule.dependent_launch),
        "a workspace": schedule.workspace,
        "early_fill": schedule.early_fill,
    }
    counted: tuple[str, ...] = ()
    if schedule.multicast:
        counted = ("evict_first", "dependent_launch", "a workspace")
    elif schedule.split_cluster and problem.batched:
        counted = ("evict_first", "dependent_launch", "early_fill")
    elif schedule.split_cluster and problem.fused.gated:
        counted = ("evict_first",)
    return [name for name in counted if extras[name]]


def consumer_registers(schedule: Schedule, registers_per_sm: int) -> int:
    """Registers a consumer thread may use."""
    return schedule.consumer_regs or launch_registers(schedule.threads, registers_per_sm)


def max_accumulators(problem: Problem, schedule: Schedule, registers_per_sm: int) -> int:
    """Most accumulators a consumer thread can hold without spilling; promoted sums need a second set.

    With more than 384 threads ptxas applies the registers at entry to each wgmma, so that setmaxnreg cannot
    raise the limit beyond them (C7602).
    """
    entry = launch_registers(schedule.threads, registers_per_sm)
    limit = consumer_registers(schedule, registers_per_sm) - REGISTER_OVERHEAD
    limit -= _fused_overhead(problem) + _reduction_overhead(problem, schedule)
    if copied(problem, "d"):
        limit -= COPY_OVERHEAD
    if problem.accumulate == PROMOTED:
        limit //= 2
    if schedule.threads > 384:
        limit = min(limit, entry - 32)
    if schedule.reduction == "shares" and (problem.epilogue != "none" or schedule.consumers == 1):
        limit = min(limit, MOST_IN_SHARES)
    return limit


def two_parts_spill(problem: Problem, schedule: Schedule) -> bool:
    """Whether two parts of a tile, loaded at once from their slots, are more than the registers of a consumer hold.

    Where parts are two, the compiler has them loaded so unless it is kept from it.
    """
    if schedule.split_k != 2 or schedule.reduction != "slots":
        return False
    fused = problem.fused
    matrices = fused.gated or fused.residual or fused.aux
    needed = 2 * schedule.accumulators + (48 if matrices else 24)  # beside them, found by compiling the space
    return needed > consumer_registers(schedule, REGISTERS_PER_SM)


def wanted_for_parts(schedule: Schedule) -> int:
    """Registers of a consumer thread that parts of a tile on their way are given where there are enough: as many as
    sums have, or sixteen loads."""
    return max(schedule.accumulators, 16 * 4)


def registers_for_parts(schedule: Schedule) -> int:
    """Those that they get, beside the thread's own share of the tile: with the address of each load two for every three
    (found by compiling the space)."""
    own = schedule.accumulators // schedule.split_k
    free = consumer_registers(schedule, REGISTERS_PER_SM) - REGISTER_OVERHEAD - 24 - own
    return min(wanted_for_parts(schedule), max(32, 2 * free // 3))


def turns_crowd_loop(schedule: Schedule) -> bool:
    """Whether the K loop has no room to work out again whose turn it is, which the compiler likes to do in every
    k-block where CTAs along one axis take turns; found by compiling, as loops of two or three wgmma blocks a step."""
    if schedule.multicast_kind != "rotate" or not schedule.mma_in_flight:
        return False
    along_n, along_m = schedule.cluster_m == 1, schedule.cluster_n == 1
    blocks = schedule.m64_per_warpgroup
    return (blocks == 2 and along_n) or (blocks == 3 and (along_n or along_m))


def stage_readers(schedule: Schedule) -> int:
    """Consumer warpgroups of a CTA that read a stage."""
    return 1 if schedule.arrangement == PINGPONG else schedule.consumers


def _reduction_overhead(problem: Problem, schedule: Schedule) -> int:
    if schedule.split_k == 1 and not schedule.workspace:
        return 0
    fused = problem.epilogue != "none"
    return REDUCTION_OVERHEAD[schedule.reduction] + (FUSED_REDUCTION_OVERHEAD if fused else 0)


def _fused_overhead(problem: Problem) -> int:
    fused = problem.fused
    if fused.gated or (fused.residual and fused.activation):
        return GATE_OVERHEAD
    return MATRIX_OVERHEAD if fused.residual or fused.aux else 0


def empty_arrivals(schedule: Schedule, cluster_row: int = 0, cluster_column: int = 0, stage: int = 0) -> int:
    """Arrivals that hand `stage` back to the producer of the CTA at that place in its cluster.

    One for each consumer warpgroup that reads the stage, in every CTA that the producer multicasts to, itself
    counted once: the CTAs of its cluster row and column, with a `leader` only of the row or column that it is first of,
    with `rotate` only of those for which it is its turn to load the stage.
    """
    slices = schedule.multicast_kind == "slice"
    turn = stage if schedule.multicast_kind == "rotate" else 0
    in_row = schedule.cluster_n - 1 if slices or cluster_column == turn % schedule.cluster_n else 0
    in_column = schedule.cluster_m - 1 if slices or cluster_row == turn % schedule.cluster_m else 0
    return stage_readers(schedule) * (1 + in_row + in_column)


@functools.cache
def store_pieces(tile_n: int, epilogue_n: int) -> tuple[tuple[int, int], ...]:
    """The (first column, width) of every piece in which the epilogue stores `tile_n` columns.

    A piece is as wide as the swizzle of its shared memory (64, 32 or 16 columns; 8 goes without), so that a
    TMA box never reaches beyond the tile: 176 columns in chunks of 64 are 64 + 64 + 32 + 16.
    """
    pieces = []
    column = 0
    while column < tile_n:
        width = epilogue_n
        while width > tile_n - column:
            width //= 2
        pieces.append((column, width))
        column += width
    return tuple(pieces)


def tile_columns(problem: Problem, schedule: Schedule) -> int:
    """Columns of the kernel's output that one tile gives: half of its own where one half gates the other."""
    return schedule.tile_n // 2 if problem.fused.gated else schedule.tile_n


def piece_count(problem: Problem, schedule: Schedule) -> int:
    """Pieces in which a consumer warpgroup stores its part of a tile of D."""
    return len(store_pieces(tile_columns(problem, schedule), schedule.epilogue_n)) * schedule.m64_per_warpgroup


def stores_per_piece(problem: Problem) -> int:
    """Stores of a piece: one of D, and before it one of the auxiliary output for each half of the product."""
    fused = problem.fused
    return 1 + fused.aux * (2 if fused.gated else 1)
