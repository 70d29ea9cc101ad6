"""What a launch needs beside the cubin: grid, shared memory, tensor maps, scalar arguments. Pure Python.

`measure.driver` turns a plan into driver calls; nothing else in the project launches a generated kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..space import (
    DTYPE_BYTES,
    GEMV,
    OUT_DTYPE_BYTES,
    BadInput,
    Pitch,
    Pitches,
    Problem,
    Schedule,
    TileGrid,
    ceil_div,
    kernel_extents,
    shared_memory,
    store_pieces,
    tile_grid,
)
from ..space.problem import TMA_ALIGNMENT
from ..space.resources import (
    ACCUMULATOR_BYTES,
    SWIZZLE_BYTES,
    OperandTile,
    copied,
    loaded_rows,
    operand_tiles,
    tile_columns,
)
from . import walk

INT_ARGUMENTS = ("m", "n", "k", "k_zigzag", *walk.FIELDS)
"""The 32-bit kernel arguments after the tensor maps, in order: m and n are the rows and columns that the kernel
computes; the last are the fields of its `Walk`. With `clip_boxes` the bytes of a stage follow. A `gemv` has the first
three."""

BATCH_INT_ARGUMENTS = (*INT_ARGUMENTS, *walk.BATCH_FIELDS, "batch", "a_step", "b_step")
"""The same with a batch: the steps of the kernel's operands are 1, or 0 for one that all products share."""

MAX_PITCH_BYTES = 2**40
"""What pitches of a tensor map are below (cuda.h, cuTensorMapEncodeTiled)."""

FLAG_ALIGNMENT = 128
"""The slots of the workspace start at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """The arguments of one cuTensorMapEncodeTiled call: a row-major matrix and the box that one TMA moves.

    `extents` and `box` are (columns, rows), columns contiguous, in elements, and with a batch a third for its products;
    `pitches_bytes` are from row to row, and from product to product; `swizzle_bytes` is 0, 32, 64 or 128,
    `l2_promotion` 0, 64, 128 or 256 bytes. Out-of-bounds elements read as zero and are not written.
    """

    operand: str
    """Whose memory it describes: `a`, `b`, `d`, the residual `c` or the auxiliary output `aux`."""
    dtype: str
    extents: tuple[int, ...]
    pitches_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    l2_promotion: int
    offset_bytes: int = 0
    """From the start of the operand's memory to the first element: a half of the product that is stored by itself."""


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    """Device memory where parts of tiles are added: counters of arrivals, then slots of fp32 partial tiles."""

    flag_bytes: int
    slot_bytes: int
    slots: int
    slots_per_cta: int


@dataclass(frozen=True, slots=True)
class Argument:
    """A kernel argument after the integers: of type `address` (of device memory, 64 bits), `int64` or `float`."""

    type: str
    name: str
    value: int | None = None
    """Known to the plan; None for what only the caller knows, under `name`."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch. Arguments are the tensor maps in order, then `ints`, then `arguments`."""

    tensor_maps: tuple[TensorMapSpec, ...]
    ints: tuple[int, ...]
    arguments: tuple[Argument, ...]
    """Each only where the kernel has it: addresses and pitches in elements of the operand with the kernel's rows and of
    the other, where they are read without TMA; the address of the workspace; of the bias; address and pitches of a
    residual that consumers read themselves; and of D where TMA does not store it; the numbers alpha and beta."""
    block: int
    cluster: int
    smem_bytes: int
    units: int
    """Work for that many clusters: the grid of a kernel that is not persistent."""
    persistent: bool
    ctas: int
    """Cap on a persistent grid; 0 means none."""
    dependent: bool
    """Launch with programmatic stream serialization: before the kernel ahead in the stream has finished."""
    workspace: WorkspaceSpec | None

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of what the caller has to give: addresses of matrices (`a`, `b`, `d`, ...) and `arguments`."""
        matrices = [spec.operand for spec in self.tensor_maps]
        return tuple(dict.fromkeys(matrices + [each.name for each in self.arguments if each.value is None]))

    def grid(self, resident_clusters: int) -> int:
        """CTAs to launch (a one-dimensional grid), when the device holds `resident_clusters` clusters at once
        (cuOccupancyMaxActiveClusters)."""
        if not self.persistent:
            return self.units * self.cluster
        limit = min(resident_clusters, self.units)
        if self.ctas:
            limit = min(limit, self.ctas // self.cluster)
        return limit * self.cluster

    def workspace_bytes(self, grid: int) -> int:
        """Bytes of device memory that `grid` CTAs need, zero at the first launch; every launch leaves it so again."""
        if self.workspace is None:
            return 0
        slots = self.workspace.slots + self.workspace.slots_per_cta * grid
        return self.workspace.flag_bytes + slots * self.workspace.slot_bytes


def launch_plan(problem: Problem, schedule: Schedule, pitches: Pitches | None = None) -> LaunchPlan:
    """The launch of `schedule` on `problem`, which must be valid together, on matrices that lie as `pitches` say (by
    default as close as the problem's alignments allow).

    Raises:
        BadInput: a pitch is none that TMA takes.
    """
    pitches = pitches or Pitches.of(problem)
    if schedule.arrangement == GEMV:
        return _gemv_plan(problem, schedule, pitches)
    tiles = operand_tiles(problem, schedule)
    loaded = loaded_rows(problem, schedule)
    maps = [
        _operand_map(problem, schedule, tile, slab_rows, pitches)
        for tile, slab_rows in zip(tiles, loaded, strict=True)
        if not copied(problem, tile.operand)
    ]
    widths = store_widths(problem, schedule)
    staged = staged_matrices(problem, schedule)
    maps += [_chunk_map(problem, schedule, name, width, pitches) for name in staged for width in widths]
    grid = tile_grid(problem, schedule)
    return LaunchPlan(
        tensor_maps=tuple(maps),
        ints=(
            *kernel_extents(problem, schedule),
            problem.k,
            int(schedule.k_zigzag),
            *walk.values(grid, schedule),
            *(_batch_ints(problem, schedule) if problem.batched else ()),
            *([_stage_bytes(loaded, tiles)] if schedule.clip_boxes else []),
        ),
        arguments=tuple(_arguments(problem, schedule, pitches)),
        block=schedule.threads,
        cluster=schedule.cluster_size,
        smem_bytes=shared_memory(problem, schedule).total,
        units=grid.clusters * (grid.k_blocks if schedule.stream_k else grid.parts),
        persistent=schedule.persistent,
        ctas=schedule.ctas,
        dependent=bool(schedule.dependent_launch),
        workspace=_workspace(schedule, grid) if schedule.workspace else None,
    )


def map_rank(problem: Problem) -> int:
    """Dimensions of the tensor maps: columns, rows, and with a batch its products."""
    return 3 if problem.batched else 2


def _operand_map(
    problem: Problem, schedule: Schedule, tile: OperandTile, slab_rows: int, pitches: Pitches
) -> TensorMapSpec:
    rows, columns = problem.stored(tile.operand)
    element = DTYPE_BYTES[problem.dtype]
    return _tensor_map(
        problem,
        schedule,
        tile.operand,
        problem.dtype,
        (columns, rows, problem.copies(tile.operand)),
        _bytes(getattr(pitches, tile.operand), element),
        box=(SWIZZLE_BYTES // element, slab_rows // (tile.slices * tile.slab_boxes)),
        swizzle_bytes=SWIZZLE_BYTES,
    )


def _chunk_map(problem: Problem, schedule: Schedule, name: str, width: int, pitches: Pitches) -> TensorMapSpec:
    """The map of one of `staged_matrices` for pieces of `width` columns of what the kernel computes."""
    operand = name.removesuffix(UP)
    element = OUT_DTYPE_BYTES[problem.out_dtype]
    # A transposed piece has rows of 64 elements, which of fp32 take two boxes.
    box = (min(64, SWIZZLE_BYTES // element), width) if schedule.swap_ab else (width, 64)
    return _tensor_map(
        problem,
        schedule,
        operand,
        problem.out_dtype,
        (problem.d_columns, problem.m, problem.batch),
        _bytes(getattr(pitches, operand), element),
        box=box,
        swizzle_bytes=piece_swizzle_bytes(box[0] * element),
        offset_bytes=problem.d_columns * element if name.endswith(UP) else 0,
    )


def _tensor_map(
    problem: Problem,
    schedule: Schedule,
    operand: str,
    dtype: str,
    extents: tuple[int, int, int],
    pitches_bytes: tuple[int, int],
    box: tuple[int, int],
    swizzle_bytes: int,
    offset_bytes: int = 0,
) -> TensorMapSpec:
    rank = map_rank(problem)
    if extents[2] == 1:
        pitches_bytes = (pitches_bytes[0], pitches_bytes[0])  # there is one product: the distance is never used
    for pitch in pitches_bytes[: rank - 1]:
        if pitch % TMA_ALIGNMENT or not 0 < pitch < MAX_PITCH_BYTES:
            raise BadInput(
                f"a pitch of {operand.upper()} is {pitch} bytes: valid are multiples of {TMA_ALIGNMENT}"
                f" from {TMA_ALIGNMENT} to below {MAX_PITCH_BYTES}"
            )
    return TensorMapSpec(
        operand=operand,
        dtype=dtype,
        extents=extents[:rank],
        pitches_bytes=pitches_bytes[: rank - 1],
        box=(*box, 1)[:rank],
        swizzle_bytes=swizzle_bytes,
        l2_promotion=schedule.l2_promotion,
        offset_bytes=offset_bytes,
    )


def _bytes(pitch: Pitch, element: int) -> tuple[int, int]:
    return pitch.row * element, pitch.batch * element


def _batch_ints(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """The products, and for both operands of the kernel the step from one to the next."""
    return problem.batch, *(int(problem.copies(t.operand) > 1) for t in operand_tiles(problem, schedule))


def _stage_bytes(loaded: tuple[int, int], tiles: tuple[OperandTile, OperandTile]) -> int:
    """Bytes that arrive in a stage whose slabs have `loaded` rows of each operand."""
    return sum(rows * SWIZZLE_BYTES * tile.slabs for rows, tile in zip(loaded, tiles, strict=True))


def _arguments(problem: Problem, schedule: Schedule, pitches: Pitches) -> Iterator[Argument]:
    for operand in "ba" if schedule.swap_ab else "ab":
        if schedule.arrangement == GEMV or copied(problem, operand):
            yield from _matrix(problem, operand, getattr(pitches, operand))
    if schedule.workspace:
        yield Argument("address", "workspace")
    for word in problem.fused.scales:
        yield Argument("address", word)
    if problem.fused.bias:
        yield Argument("address", "bias")
    if problem.fused.residual and not schedule.residual_buffers:
        yield from _matrix(problem, "c", pitches.c)
    if schedule.store != "tma":
        yield from _matrix(problem, "d", pitches.d)
    for number in ("alpha", "beta"):
        if getattr(problem.fused, number):
            yield Argument("float", number)


def _matrix(problem: Problem, name: str, pitch: Pitch) -> Iterator[Argument]:
    """The arguments of a matrix without tensor map."""
    yield Argument("address", name)
    yield Argument("int64", f"{name}_pitch", pitch.row)
    if problem.batched:
        yield Argument("int64", f"{name}_batch", pitch.batch)


def _gemv_plan(problem: Problem, s: Schedule, pitches: Pitches) -> LaunchPlan:
    grid = tile_grid(problem, s)
    slot_bytes = s.tile_m * s.tile_n * ACCUMULATOR_BYTES
    flag_bytes = ceil_div(4 * grid.clusters, FLAG_ALIGNMENT) * FLAG_ALIGNMENT
    return LaunchPlan(
        tensor_maps=(),
        ints=(*kernel_extents(problem, s), problem.k),
        arguments=tuple(_arguments(problem, s, pitches)),
        block=s.threads,
        cluster=1,
        smem_bytes=shared_memory(problem, s).total,
        units=grid.ctas,
        persistent=False,
        ctas=0,
        dependent=bool(s.dependent_launch),
        workspace=WorkspaceSpec(flag_bytes, slot_bytes, grid.ctas, 0) if s.workspace else None,
    )


def _workspace(schedule: Schedule, grid: TileGrid) -> WorkspaceSpec:
    tiles = grid.clusters * schedule.cluster_size
    if schedule.stream_k:
        slots, slots_per_cta = 0, 2
    else:
        slots, slots_per_cta = tiles * (1 if schedule.reduction == "atomic" else grid.parts), 0
    return WorkspaceSpec(
        flag_bytes=ceil_div(4 * tiles * schedule.consumers, FLAG_ALIGNMENT) * FLAG_ALIGNMENT,
        slot_bytes=schedule.tile_m * schedule.tile_n * ACCUMULATOR_BYTES,
        slots=slots,
        slots_per_cta=slots_per_cta,
    )


UP = "_up"


def staged_matrices(problem: Problem, schedule: Schedule) -> list[str]:
    """The matrices of D's shape that go through chunks of shared memory: each has tensor maps. The auxiliary output
    of a gated epilogue is two of them, its left half `aux` and its right half `aux_up`."""
    fused = problem.fused
    names = {
        "d": schedule.store == "tma",
        "c": schedule.residual_buffers > 0,
        "aux": fused.aux,
        "aux" + UP: fused.aux and fused.gated,
    }
    return [name for name, staged in names.items() if staged]


def store_widths(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """The distinct widths of the epilogue's pieces, widest first: one tensor map for each."""
    widths = {width for _, width in store_pieces(tile_columns(problem, schedule), schedule.epilogue_n)}
    return tuple(sorted(widths, reverse=True))


def piece_swizzle_bytes(row_bytes: int) -> int:
    """The shared-memory swizzle of a piece with rows of that many bytes: its row, and none for 16-byte rows.

    Eight rows of 16 bytes then fall into different banks for every width.
    """
    return 0 if row_bytes == 16 else row_bytes
