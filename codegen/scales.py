"""Scales of the product: a number, a vector along rows, one along columns. In fp32, before anything else is fused.

With swapped operands a scale along m is one along the kernel's columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..space import Problem, Schedule
from .pieces import Piece
from .walk import d_columns


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of scales: along rows or columns of what the kernel computes."""

    word: str
    """Its name in the epilogue, and of the kernel's argument."""
    axis: str
    """`row` or `column`."""
    length: str
    """How many a warpgroup needs, as a CUDA expression."""
    extent: str
    """How many there are: `m` or `n` of what the kernel computes, of the columns of a gate half."""

    @property
    def load(self) -> str:
        """The function that loads them."""
        return "load_scales" if self.extent in "mn" else "load_scales_of_halves"

    @property
    def kept(self) -> str:
        """The pointer to where the warpgroup keeps them in shared memory."""
        return f"{self.axis}_scales"


def vectors(problem: Problem, s: Schedule) -> Iterator[Vector]:
    """The vectors of scales, in the order of the words."""
    for word in problem.fused.scales:
        if word != "scale":
            along_rows = (word == "scale_m") != s.swap_ab
            columns = d_columns(problem)
            yield Vector(word, "row", "64 * M64", "m") if along_rows else Vector(word, "column", "TILE_N", columns)


def constants(problem: Problem, s: Schedule, offset: int) -> list[str]:
    """Where the vectors are kept, from byte `offset` of shared memory on."""
    lines = []
    for vector in vectors(problem, s):
        lines.append(f"constexpr u32 SMEM_{vector.kept.upper()} = {offset};")
        offset += 4 * s.consumers * (64 * s.m64_per_warpgroup if vector.axis == "row" else s.tile_n)
    return lines


def functions(problem: Problem, s: Schedule) -> list[str]:
    """Device functions of scales."""
    loads = {v.load for v in vectors(problem, s)}
    found = [text for name, text in _LOADS.items() if name in loads] + [_KEEP] * bool(loads)
    found += [_SCALE_ROWS if vector.axis == "row" else _SCALE_COLUMNS for vector in vectors(problem, s)]
    return [*found, _SCALE_ALL] if "scale" in problem.fused.scales or problem.fused.alpha else found


def places(problem: Problem, s: Schedule) -> list[str]:
    """Lines that say where a consumer keeps its vectors."""
    return [
        f"float* const {v.kept} = (float*)(shared + SMEM_{v.kept.upper()}) + consumer * {v.length};"
        for v in vectors(problem, s)
    ]


def before_main_loop(problem: Problem, s: Schedule) -> list[str]:
    """Lines that ask for the scales of a tile, which arrive while the main loop runs."""
    lines = ["const float tensor_scale = *scale;"] if "scale" in problem.fused.scales else []
    for v in vectors(problem, s):
        lines += [
            f"float {v.word}_values[({v.length} + 127) / 128];",
            f"{v.load}<{v.length}>({v.word}_values, {v.word}, {v.axis}, {v.extent}, thread);",
        ]
    return lines


def after_main_loop(problem: Problem, s: Schedule) -> list[str]:
    """Lines that lay the vectors out for all threads; those who read them synchronise first."""
    return [f"keep_scales<{v.length}>({v.word}_values, {v.kept}, thread);" for v in vectors(problem, s)]


def finish(problem: Problem, s: Schedule, piece: Piece, where: str) -> list[str]:
    """Lines that scale the sums of one piece, or of a half of it: those that `where` says."""
    lines = [f"scale_all{where}, tensor_scale);"] if "scale" in problem.fused.scales else []
    if problem.fused.alpha:
        lines.append(f"scale_all{where}, alpha);")
    for v in vectors(problem, s):
        first = f"{v.kept} + {64 * piece.block}" if v.axis == "row" and piece.block else v.kept
        lines.append(f"scale_{v.axis}s{where}, {first}, thread);")
    return lines


_LOADS = {
    "load_scales": """\
// A vector of scales: each thread loads one or two values, and the whole warpgroup finds them in shared memory.
template <int LENGTH, int COUNT>
__device__ __forceinline__ void load_scales(float (&values)[COUNT], const float* scales, int first, int extent,
                                            int thread) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int at = thread + 128 * i;
    values[i] = at < LENGTH && first + at < extent ? scales[first + at] : 0;
  }
}""",
    "load_scales_of_halves": """\
// Likewise those of the columns of a gate, then of its up, `extent` apart.
template <int LENGTH, int COUNT>
__device__ __forceinline__ void load_scales_of_halves(float (&values)[COUNT], const float* scales, int first,
                                                      int extent, int thread) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int at = thread + 128 * i, half = at / (LENGTH / 2);
    const int place = first + at % (LENGTH / 2);
    values[i] = at < LENGTH && place < extent ? scales[place + half * extent] : 0;
  }
}""",
}

_KEEP = """\
template <int LENGTH, int COUNT>
__device__ __forceinline__ void keep_scales(const float (&values)[COUNT], float* kept, int thread) {
  #pragma unroll
  for (int i = 0; i < COUNT; ++i)
    if (thread + 128 * i < LENGTH) kept[thread + 128 * i] = values[i];
}"""

_SCALE_ROWS = """\
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void scale_rows(float (&d)[COUNT], const float* scales, int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const float first = scales[row], second = scales[row + 8];
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] *= j / 2 % 2 ? second : first;
}"""

_SCALE_COLUMNS = """\
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void scale_columns(float (&d)[COUNT], const float* scales, int thread) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; j += 4) {
    const float2 two = *(const float2*)(scales + 2 * j + thread % 4 * 2);
    d[j] *= two.x;
    d[j + 1] *= two.y;
    d[j + 2] *= two.x;
    d[j + 3] *= two.y;
  }
}"""

_SCALE_ALL = """\
template <int COLUMN, int WIDTH, int COUNT>
__device__ __forceinline__ void scale_all(float (&d)[COUNT], float scale) {
  #pragma unroll
  for (int j = COLUMN / 2; j < (COLUMN + WIDTH) / 2; ++j) d[j] *= scale;
}"""
