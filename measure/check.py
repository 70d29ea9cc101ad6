"""Whether an output is right: tolerances, and the odd-shaped companions on which it must be right to the bit.

The arithmetic works on torch and numpy arrays alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..space import DTYPE_BYTES, FAST, GEMV, OUT_DTYPE_BYTES, Device, Problem, Schedule, ceil_div, violations
from ..space.problem import PROMOTED_K, TMA_ALIGNMENT

_UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24, "fp8": 2.0**-4}
"""Largest relative error of rounding to the output dtype."""

_SMALLEST_ROUNDOFF = {"fp8": 2.0**-10}
"""Largest error of rounding the smallest numbers, where sums come near them: half of e4m3's 2^-9."""

_RMS_OF_ROUNDOFF = 0.43
"""Relative error of a whole rounded output, as a share of the unit roundoff: 1.66e-3 for N(0, 1) sums in bf16."""

_LARGEST_SUM = 6.0
"""No more is expected of millions of sums that are N(0, 1)."""

SLICE_ELEMENTS = 32 * 2**20
"""Outputs are compared in slices of rows of about this many elements, to bound temporaries."""

COMPANION_SIZES = ((2999, 3032, 296), (2999, 3032, 40), (37, 40, 16904), (5, 24, 72))
"""(m, n, k) of the companions. No tile divides them: primes, times 8 where a row must be a multiple of 16 bytes
(`_odd_multiple` for other elements than 16 bits). The first has more tiles than CTAs fit the device for every tile and
ends K inside a stage; the second has one k-block a tile, fewer than any ring has stages; the third has k-blocks for
every split of K, and an odd number of them; the fourth is smaller than any tile."""

ALIGNED_M = {2999: 2984, 37: 40, 5: 8}
"""What replaces m where it is the contiguous axis of A: 8 x 373 for the first."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an output may be from the exact product of N(0, 1) operands.

    An element may be off by `relative` times its size plus `absolute`; the whole output by `norm`, relative, in the
    Euclidean norm.
    """

    relative: float
    absolute: float
    norm: float


def tolerance(problem: Problem, slack: float = 1.0) -> Tolerance:
    """The tolerance of sums over `problem.k` products, rounded once to its output dtype.

    Sums have the size sqrt(k), and so has `absolute`. Its share of that covers float32 accumulation in tensor cores,
    which truncates: a bias of up to 2^-24 for each of k / 16 additions. bf16 accumulation is beyond it by a factor of
    ten and more, and even one additional rounding to the output dtype is beyond `norm`. Sums of 8-bit products get
    `short_sums` beside. `slack` multiplies all: libraries that round partial sums to the output dtype need 8.

    A gate and its up are N(0, 1), and each brings its error into their product, times the other.
    """
    k, unit, eight = problem.k, _UNIT_ROUNDOFF[problem.out_dtype], DTYPE_BYTES[problem.dtype] == 1
    share = 2.0**-12 + k * 2.0**-27
    short = short_sums(k if problem.accumulate == FAST else min(k, PROMOTED_K)) if eight else 0.0
    size, factors = (2 * _LARGEST_SUM, 2) if problem.fused.gated else (math.sqrt(k), 1)
    absolute = (share + _WORST_SHORT_SUM * short) * size + _SMALLEST_ROUNDOFF.get(problem.out_dtype, 0.0)
    return Tolerance(
        relative=slack * 1.01 * unit,
        absolute=slack * absolute,
        norm=slack * (1.15 * _RMS_OF_ROUNDOFF * unit + factors * (share + short)),
    )


def short_sums(k: int) -> float:
    """The relative error, in the norm, that is allowed to sums of `k` 8-bit products in Hopper's tensor cores.

    Those align the 32 products of an instruction and the sum so far to the largest of them, and keep 13 bits after its
    leading one, truncated (DeepSeek-V3, arXiv:2412.19437, 3.3.2 and 3.5.2; SageAttention2, arXiv:2411.10958, 3.4). Of
    N(0, 1) operands that makes k / 32 errors of about 2^-13 of the sum which add up as a random walk: 2^-13
    sqrt(k / 32), 0.14 % at 4096, as an emulation confirms (`tests/test_measure.py`). Three times that is allowed.
    """
    return 3 * 2.0**-13 * math.sqrt(k / 32)


_WORST_SHORT_SUM = 8.0
"""The largest error of an element, as a multiple of `short_sums`: in the emulation 3 among 2 x 10^4."""


LIBRARY_SLACK = 8.0
"""cuBLAS may add split-K partial sums in the output dtype."""


def library_tolerance(problem: Problem) -> Tolerance:
    """The tolerance of a library, which rounds what it hands from kernel to kernel to the output dtype.

    Many partial sums, each rounded as it is added, leave an error of the size of `norm` in every element, also where
    the sum itself is near zero. A gate and its up are rounded before they are multiplied: that matters where a residual
    cancels their product.
    """
    allowed = tolerance(problem, LIBRARY_SLACK)
    if problem.fused.gated:
        handed_on = 2 * _UNIT_ROUNDOFF[problem.out_dtype] * _LARGEST_SUM**2
    else:
        handed_on = _LARGEST_SUM * allowed.norm * math.sqrt(problem.k)
    return replace(allowed, absolute=allowed.absolute + handed_on)


def errors(d: Any, reference: Any, allowed: Tolerance) -> tuple[Any, Any, Any]:
    """(largest error as a share of what is allowed, sum of squared errors, sum of squared references).

    All in float32. NaN in `d` makes the first and second NaN, which no comparison accepts.
    """
    error = abs(d - reference)
    share = error / (abs(reference) * allowed.relative + allowed.absolute)
    return share.max(), (error * error).sum(), (reference * reference).sum()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one comparison: `worst` error as a share of its tolerance, relative error `norm` of the whole."""

    worst: float
    norm: float
    allowed_norm: float

    @property
    def right(self) -> bool:
        """Written so that NaN is wrong."""
        return self.worst <= 1.0 and self.norm <= self.allowed_norm

    def __str__(self) -> str:
        return f"largest error {self.worst:.3g} of its tolerance, norm {self.norm:.3g} of {self.allowed_norm:.3g}"


def verdict(parts: list[tuple[float, float, float]], allowed: Tolerance) -> Verdict:
    """The verdict over the `errors` of all slices of an output."""
    worst = max(0.0, *(part[0] for part in parts)) if all(part[0] == part[0] for part in parts) else math.nan
    squares = sum(part[2] for part in parts)
    norm = math.sqrt(sum(part[1] for part in parts) / squares) if squares > 0 else math.nan
    return Verdict(worst, norm, allowed.norm)


def row_slices(rows: int, columns: int, elements: int = SLICE_ELEMENTS) -> Iterator[slice]:
    """Slices of `rows` rows with about `elements` elements each, at least one row."""
    step = max(1, elements // columns)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def companions(problem: Problem, schedule: Schedule, device: Device) -> list[Problem]:
    """The odd-shaped problems of the same kind that `schedule` must also get right: those it is valid for. A batch has
    three products. Where the problem's rows end inside 16 bytes, so do theirs, at the same place."""
    element, out = DTYPE_BYTES[problem.dtype], OUT_DTYPE_BYTES[problem.out_dtype]
    halves = 2 if problem.fused.gated else 1
    units = {"m": TMA_ALIGNMENT // element, "k": TMA_ALIGNMENT // element}
    units["n"] = max(halves * TMA_ALIGNMENT // out, TMA_ALIGNMENT // element if problem.b_major == "n" else 1)
    sizes = [
        (m if problem.a_major == "k" else ALIGNED_M[m], _odd_multiple(n, units["n"]), _odd_multiple(k, units["k"]))
        for m, n, k in COMPANION_SIZES
    ]
    if schedule.arrangement == GEMV:
        # Only so many vectors: cut to as many as it takes.
        most = schedule.tile_m
        sizes = [(m, min(n, most), k) if schedule.swap_ab else (min(m, most), n, k) for m, n, k in sizes]
    batch = min(problem.batch, 3)
    found = []
    for extents in sizes:
        m, n, k = (_ending_as(problem, axis, size, units[axis]) for axis, size in zip("mnk", extents, strict=True))
        found.append(replace(problem.resized(m, n, k), batch=batch))
    return [companion for companion in found if not violations(companion, schedule, device)]


def shape(problem: Problem) -> str:
    """The sizes of a companion in words, such as `37x40x16904`, with the batch ahead where there is one."""
    return f"{problem.batch}x" * problem.batched + f"{problem.m}x{problem.n}x{problem.k}"


def _ending_as(problem: Problem, axis: str, size: int, unit: int) -> int:
    """`size`, or a little less: rows along `axis` end inside 16 bytes (`unit` elements) where the problem's do."""
    end = getattr(problem, axis) % unit
    contiguous = axis in (problem.a_major, problem.b_major, "n")
    return size - unit + int(end) if contiguous and end and size >= unit else size


def _odd_multiple(size: int, unit: int) -> int:
    """The smallest odd multiple of `unit` from `size` on: only the narrowest aligned rows."""
    return (ceil_div(size, unit) | 1) * unit


def wrong_elements(d: Any, reference: Any, allowed: Tolerance) -> tuple[int, int, int]:
    """(how many elements of `d` are wrong, row and column of the first); (0, -1, -1) when none is."""
    wrong = ~(abs(d - reference) <= abs(reference) * allowed.relative + allowed.absolute)
    count = int(wrong.sum())
    if not count:
        return 0, -1, -1
    first = int((wrong * 1).reshape(-1).argmax())  # torch has no argmax of booleans
    return count, first // d.shape[1], first % d.shape[1]
