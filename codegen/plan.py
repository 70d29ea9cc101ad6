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
    Problem,
    Schedule,
    TileGrid,
    ceil_div,
    kernel_extents,
    shared_memory,
    store_pieces,
    tile_grid,
)
from ..space.resources import ACCUMULATOR_BYTES, SWIZZLE_BYTES, operand_tiles
from . import walk

INT_ARGUMENTS = ("m", "n", "k", "k_zigzag", *walk.FIELDS)
"""The 32-bit kernel arguments after the tensor maps, in order: m and n are the rows and columns that the kernel
computes; the last are the fields of its `Walk`. A `gemv` has the first three."""


FLAG_ALIGNMENT = 128
"""The slots of the workspace start at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """The arguments of one cuTensorMapEncodeTiled call: a row-major matrix and the box that one TMA moves.

    `extents` and `box` are (columns, rows), columns contiguous, in elements; `pitch_bytes` is from row to row;
    `swizzle_bytes` is 0, 32, 64 or 128, `l2_promotion` 0, 64, 128 or 256 bytes. Out-of-bounds elements read as zero and
    are not written.
    """

    operand: str
    """Whose memory it describes: `a`, `b`, `d` or the residual `c`."""
    dtype: str
    extents: tuple[int, int]
    pitch_bytes: int
    box: tuple[int, int]
    swizzle_bytes: int
    l2_promotion: int


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
    """Each only where the kernel has it: the addresses of the operand with the kernel's rows and of the other, where
    they are read without TMA; of the workspace; of the bias; address and pitch in elements of a residual that consumers
    read themselves; and of D for direct stores."""
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


def launch_plan(problem: Problem, schedule: Schedule) -> LaunchPlan:
    """The launch of `schedule` on `problem`, which must be valid together."""
    if schedule.arrangement == GEMV:
        return _gemv_plan(problem, schedule)
    element = DTYPE_BYTES[problem.dtype]
    rows, columns = kernel_extents(problem, schedule)
    maps = []
    for extent, tile in zip((rows, columns), operand_tiles(problem, schedule), strict=True):
        extents = (problem.k, extent) if tile.k_major else (extent, problem.k)
        maps.append(
            TensorMapSpec(
                operand=tile.operand,
                dtype=problem.dtype,
                extents=extents,
                pitch_bytes=extents[0] * element,
                box=(SWIZZLE_BYTES // element, tile.slab_rows // tile.slices),
                swizzle_bytes=SWIZZLE_BYTES,
                l2_promotion=schedule.l2_promotion,
            )
        )
    out = OUT_DTYPE_BYTES[problem.out_dtype]
    staged = ["d"] if schedule.store == "tma" else []
    if schedule.residual_buffers:
        staged.append("c")
    for operand in staged:
        maps += [
            TensorMapSpec(
                operand=operand,
                dtype=problem.out_dtype,
                extents=(problem.n, problem.m),
                pitch_bytes=problem.n * out,
                box=(64, width) if schedule.swap_ab else (width, 64),
                swizzle_bytes=SWIZZLE_BYTES if schedule.swap_ab else piece_swizzle_bytes(width),
                l2_promotion=schedule.l2_promotion,
            )
            for width in store_widths(schedule)
        ]
    grid = tile_grid(problem, schedule)
    return LaunchPlan(
        tensor_maps=tuple(maps),
        ints=(
            rows,
            columns,
            problem.k,
            int(schedule.k_zigzag),
            *walk.values(grid, schedule),
        ),
        arguments=tuple(_arguments(problem, schedule)),
        block=schedule.threads,
        cluster=schedule.cluster_size,
        smem_bytes=shared_memory(problem, schedule).total,
        units=grid.clusters * (grid.k_blocks if schedule.stream_k else grid.parts),
        persistent=schedule.persistent,
        ctas=schedule.ctas,
        dependent=bool(schedule.dependent_launch),
        workspace=_workspace(schedule, grid) if schedule.workspace else None,
    )


def _arguments(problem: Problem, schedule: Schedule) -> Iterator[Argument]:
    if schedule.arrangement == GEMV:
        yield from (Argument("address", operand) for operand in ("ba" if schedule.swap_ab else "ab"))
    if schedule.workspace:
        yield Argument("address", "workspace")
    if problem.fused.bias:
        yield Argument("address", "bias")
    if problem.fused.residual and not schedule.residual_buffers:
        yield Argument("address", "c")
        yield Argument("int64", "c_pitch", problem.n)
    if schedule.store == "direct":
        yield Argument("address", "d")
        yield Argument("int64", "d_pitch", problem.n)


def _gemv_plan(problem: Problem, s: Schedule) -> LaunchPlan:
    grid = tile_grid(problem, s)
    slot_bytes = s.tile_m * s.tile_n * ACCUMULATOR_BYTES
    flag_bytes = ceil_div(4 * grid.clusters, FLAG_ALIGNMENT) * FLAG_ALIGNMENT
    return LaunchPlan(
        tensor_maps=(),
        ints=(*kernel_extents(problem, s), problem.k),
        arguments=tuple(_arguments(problem, s)),
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


def store_widths(schedule: Schedule) -> tuple[int, ...]:
    """The distinct widths of the epilogue's pieces, widest first: one tensor map for each."""
    widths = {width for _, width in store_pieces(schedule.tile_n, schedule.epilogue_n)}
    return tuple(sorted(widths, reverse=True))


def piece_swizzle_bytes(width: int) -> int:
    """The shared-memory swizzle of a piece of `width` 16-bit columns: its row, and none for 16-byte rows.

    Eight rows of 16 bytes then fall into different banks for every width.
    """
    return 0 if width == 8 else 2 * width
