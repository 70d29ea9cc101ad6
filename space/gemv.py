"""The arrangement `gemv`: a few rows of one operand times the other, which is streamed once from device memory.

No tensor cores and no shared-memory ring: every thread keeps 16-byte loads of the streamed operand (the weights) in
flight in registers, multiplies in fp32, and the threads add up what they have at the end. Of a schedule's fields

- `tile_m` is the number of rows (vectors) that are multiplied at once, all that the problem has, rounded up to a power
  of two; `tile_n` the outputs of a CTA for each of them;
- `tile_k` is what the CTA takes of K at once: tile_n x tile_k weights are one slice, shared evenly by its threads;
- `stages` is the number of slices in flight, in registers;
- `consumers` is the number of warpgroups, all of which do the same;
- `split_k` CTAs share K; the last of them to arrive adds their sums (`slots`).

The other fields have one valid value (`FIXED`). With `swap_ab` A is streamed and B has the few vectors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .device import Device
from .problem import DTYPE_BYTES, OUT_DTYPE_BYTES, TMA_ALIGNMENT, Problem
from .schedule import GEMV, Schedule, vary
from .tiles import ceil_div, kernel_extents, tile_grid

VECTORS = (1, 2, 4, 8)
CONSUMERS = (1, 2, 4)
TILE_N = (4, 8, 16, 32, 64, 128, 256)
TILE_K = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STAGES = (2, 3, 4, 6, 8)
LOADS = (1, 2, 4, 8)
"""16-byte loads that one slice takes of a thread."""

LOAD_ELEMENTS = 8
"""16-bit elements of one load."""

WARP_ELEMENTS = 32 * LOAD_ELEMENTS
"""Elements of one row that a warp loads at once where the weights are contiguous along K."""

REGISTER_OVERHEAD = 34
VECTOR_OVERHEAD = 6
SPLIT_OVERHEAD = 36
"""Registers of a thread for addresses, indices and temporaries, in all, for each vector, and where CTAs share K (found
by compiling the space)."""

ROWS_OVERHEAD = 28
"""Registers that addresses take in addition where loads of eight rows are in flight four times (found likewise)."""

MOST_REGISTERS = 232
"""Most that may be needed by this count: of 255 the compiler's schedule takes some more (found likewise)."""

FIXED: Mapping[str, Any] = {
    "mma_in_flight": 0,
    "cluster_m": 1,
    "cluster_n": 1,
    "persistent": False,
    "ctas": 0,
    "raster": "m",
    "swizzle": 1,
    "serpentine": False,
    "k_zigzag": False,
    "producer_regs": 0,
    "consumer_regs": 0,
    "store": "direct",
    "epilogue_n": 64,
    "epilogue_buffers": 2,
    "stream_k": False,
    "l2_promotion": 256,
    "residual_buffers": 0,
    "multicast_kind": "slice",
    "clip_boxes": False,
    "straight_start": False,
    "early_fill": False,
    "alone_stages": 0,
    "interleave_k": False,
    "exchange_in_ring": False,
    "held_blocks": 0,
    "parts_apart": False,
    "hands": 1,
    "load": "tma",
}
"""Fields that mean nothing here, with their only valid values."""


@dataclass(frozen=True, slots=True)
class GemvTile:
    """How the threads of a CTA share the weights of a slice."""

    weights: str
    """The streamed operand of the problem, `a` or `b`."""
    k_major: bool
    """Whether the weights are contiguous along K: a warp then reads 256 elements of each of `loads` rows, otherwise
    `lanes` lanes side by side read the CTA's columns of `loads` rows of K each."""
    lanes: int
    """Lanes that together read what is contiguous."""
    loads: int
    """16-byte loads of a thread for one slice."""
    partials: int
    """Warps that hold a part of the same sum."""

    @property
    def outputs(self) -> int:
        """Sums that a thread holds for each vector."""
        return self.loads if self.k_major else LOAD_ELEMENTS


def gemv_tile(problem: Problem, s: Schedule) -> GemvTile:
    """The shares of the threads; the tile must divide evenly (`tile_problems` says whether it does)."""
    weights = "a" if s.swap_ab else "b"
    k_major = (problem.a_major if s.swap_ab else problem.b_major) == "k"
    loads = s.tile_n * s.tile_k // (LOAD_ELEMENTS * s.threads)
    if k_major:
        return GemvTile(weights, True, 32, loads, s.tile_k // WARP_ELEMENTS)
    return GemvTile(weights, False, s.tile_n // LOAD_ELEMENTS, loads, s.threads // 32)


def vectors(problem: Problem, swap_ab: bool) -> int:
    """The `tile_m` that holds all vectors of the problem; 0 for too many, or for ones not contiguous along K."""
    rows, major = (problem.n, problem.b_major) if swap_ab else (problem.m, problem.a_major)
    return min((v for v in VECTORS if v >= rows), default=0) if major == "k" else 0


def plain_types(problem: Problem) -> bool:
    """Whether operands and D have 16 bits and no scales, as loads, products and stores here take them."""
    return DTYPE_BYTES[problem.dtype] == OUT_DTYPE_BYTES[problem.out_dtype] == 2 and not problem.fused.scales


def ways(problem: Problem) -> list[bool]:
    """The values of `swap_ab` with which the problem is a few vectors times a matrix."""
    return [
        swap
        for swap in (False, True)
        if plain_types(problem) and vectors(problem, swap) and not any(_geometry(problem, swap))
    ]


def _geometry(problem: Problem, swap_ab: bool) -> Iterator[str]:
    """What loads of 16 bytes cannot do, a walk over one product, and an epilogue of one value at a time."""
    if problem.batched:
        yield f"a batch of {problem.batch} in {GEMV}: valid is one product"
    if problem.fused.gated or problem.fused.aux:
        yield f"the epilogue {problem.epilogue} in {GEMV}: valid is one output, and no gate"
    for matrix in ("a", "b"):
        if (alignment := problem.alignment(matrix)) < TMA_ALIGNMENT:
            yield f"rows of {matrix.upper()} at multiples of {alignment} bytes in {GEMV}: valid is {TMA_ALIGNMENT}"
    outputs, major = ("m", problem.a_major) if swap_ab else ("n", problem.b_major)
    for axis in ("k",) if major == "k" else ("k", outputs):
        if (extent := getattr(problem, axis)) % LOAD_ELEMENTS:
            yield f"{axis} = {extent} in {GEMV}: valid are multiples of {LOAD_ELEMENTS}, what one load takes"


def gemv_smem_bytes(problem: Problem, s: Schedule) -> int:
    """Shared memory of a CTA: the parts of its sums, in fp32."""
    return 4 * gemv_tile(problem, s).partials * s.tile_m * s.tile_n


def gemv_registers(problem: Problem, s: Schedule) -> int:
    """Registers that a thread needs: slices in flight, the vectors of two slices (of all, where they are short and the
    compiler loads them early), sums, what the epilogue adds."""
    tile = gemv_tile(problem, s)
    ring = 4 * tile.loads * s.stages
    words = 4 if tile.k_major else ceil_div(tile.loads, 2)
    across = s.tile_m * words * (2 if tile.k_major else s.stages)
    sums = s.tile_m * tile.outputs
    results = ceil_div(s.tile_m * s.tile_n, s.threads)
    addresses = 2 * tile.loads if tile.k_major else 2
    if tile.k_major and tile.loads == LOADS[-1] and s.stages >= 4:
        addresses += ROWS_OVERHEAD
    added = 4 * results if problem.fused.bias or problem.fused.residual else 0
    finish = max(added, SPLIT_OVERHEAD if s.split_k > 1 else 0)
    overhead = REGISTER_OVERHEAD + VECTOR_OVERHEAD * s.tile_m + finish
    return ring + across + sums + 2 * results + addresses + overhead


def slice_problems(s: Schedule) -> Iterator[str]:
    """Why the threads of a CTA cannot share a slice evenly."""
    per_load = LOAD_ELEMENTS * s.threads
    if s.tile_n * s.tile_k not in (per_load * loads for loads in LOADS):
        yield (
            f"slices of {s.tile_n} x {s.tile_k} weights for {s.threads} threads:"
            f" valid are {', '.join(str(per_load * loads) for loads in LOADS)} weights"
        )


def tile_problems(problem: Problem, s: Schedule, device: Device) -> Iterator[str]:
    """Why tile, stages and warpgroups do not go together."""
    tile = gemv_tile(problem, s)
    if tile.k_major and not WARP_ELEMENTS <= s.tile_k <= WARP_ELEMENTS * s.threads // 32:
        yield (
            f"tile_k {s.tile_k} of weights contiguous along k:"
            f" valid are {WARP_ELEMENTS} to {WARP_ELEMENTS * s.threads // 32}, 256 for each warp that shares a row"
        )
    elif not tile.k_major and not 64 <= s.tile_n <= WARP_ELEMENTS:
        yield f"tile_n {s.tile_n} of weights contiguous along it: valid are 64, 128, 256"
    elif uneven := list(slice_problems(s)):
        yield from uneven
    elif (need := gemv_registers(problem, s)) > (
        most := min(MOST_REGISTERS, device.registers_per_sm // s.threads // 8 * 8)
    ):
        yield f"{need} registers a thread: valid is at most {most} for {s.threads} threads"


def gemv_violations(problem: Problem, s: Schedule, device: Device) -> Iterator[str]:
    """Every reason against a schedule of this arrangement whose values are each in their dimension."""
    if not plain_types(problem):
        yield f"{GEMV} of {problem.key}: valid are operands and results in bf16 or fp16, without scales"
    for name, value in FIXED.items():
        if getattr(s, name) != value:
            yield f"{name} {getattr(s, name)} in {GEMV}: valid is {value}"
    rows, _ = kernel_extents(problem, s)
    if not (tile_m := vectors(problem, s.swap_ab)):
        yield f"{GEMV} of {rows} vectors: valid are at most {VECTORS[-1]}, each contiguous along k"
    elif s.tile_m != tile_m:
        yield f"tile_m {s.tile_m} for {rows} vectors: valid is {tile_m}"
    yield from _geometry(problem, s.swap_ab)
    yield from tile_problems(problem, s, device)
    weights = gemv_tile(problem, s).weights
    if s.evict_first not in ("", weights):
        yield f"evict_first {s.evict_first} of the vectors: valid is {weights}, which is read once"
    if s.reduction != ("slots" if s.split_k > 1 else "cluster"):
        yield f"reduction {s.reduction} with split_k {s.split_k} in {GEMV}: valid is slots where K is shared"
    k_blocks = tile_grid(problem, s).k_blocks
    if s.split_k > k_blocks:
        yield f"split_k {s.split_k} of {k_blocks} k-blocks: valid is at most one CTA for each"
    if k_blocks * s.split_k >= 2**31:
        yield f"split_k {s.split_k} of {k_blocks} k-blocks: valid is a product below 2^31"
    if (need := gemv_smem_bytes(problem, s)) > device.smem_per_cta:
        yield f"{need} bytes of shared memory: valid is at most {device.smem_per_cta}"
    if (ctas := tile_grid(problem, s).ctas) > 2**31 - 1:
        yield f"{ctas} tiles: valid is at most {2**31 - 1}, which larger tiles give"


@functools.lru_cache(maxsize=1024)
def gemv_tiles(problem: Problem, device: Device) -> tuple[Schedule, ...]:
    """Every choice of warpgroups, tile and streamed operand, with the fewest stages and the other fields at `FIXED`."""
    return tuple(
        s
        for swap, consumers, tile_n, tile_k in itertools.product(ways(problem), CONSUMERS, TILE_N, TILE_K)
        for s in [Schedule(GEMV, consumers, vectors(problem, swap), tile_n, tile_k, STAGES[0], swap_ab=swap, **FIXED)]
        if not any(tile_problems(problem, s, device))
    )


_TILE = ("consumers", "tile_m", "tile_n", "tile_k", "swap_ab")
"""The dimensions of `gemv_tiles`, in the order of choosing."""


def gemv_domain(name: str, s: Schedule, problem: Problem, device: Device, splits: Iterable[int]) -> list[Any]:
    """The valid values of a dimension, given those of `s` chosen before it in the order of `enumeration.DIMENSIONS`.

    `splits` are the values of `split_k`.
    """
    if name in FIXED:
        return [FIXED[name]]
    if name in _TILE:
        chosen = _TILE[: _TILE.index(name)]
        same = [t for t in gemv_tiles(problem, device) if all(getattr(t, c) == getattr(s, c) for c in chosen)]
        return sorted({getattr(t, name) for t in same})
    match name:
        case "stages":
            return [n for n in STAGES if not any(tile_problems(problem, vary(s, stages=n), device))]
        case "split_k":
            grid = tile_grid(problem, s)
            most = min(grid.k_blocks, 2**31 // grid.k_blocks - 1, 2**31 // grid.ctas - 1)
            fits = not any(tile_problems(problem, vary(s, split_k=2), device))
            return [k for k in splits if k == 1 or (fits and k <= most)]
        case "reduction":
            return ["slots" if s.split_k > 1 else "cluster"]
        case "evict_first":
            return ["", gemv_tile(problem, s).weights]
    raise KeyError(name)
