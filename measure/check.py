"""Whether an output is right: tolerances, and the odd-shaped companions on which it must be right to the bit.

The arithmetic works on torch and numpy arrays alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..space import GEMV, Device, Problem, Schedule, violations

_UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
"""Largest relative error of rounding to the output dtype."""

_RMS_OF_ROUNDOFF = 0.43
"""Relative error of a whole rounded output, as a share of the unit roundoff: 1.66e-3 for N(0, 1) sums in bf16."""

SLICE_ELEMENTS = 32 * 2**20
"""Outputs are compared in slices of rows of about this many elements, to bound temporaries."""

COMPANION_SIZES = ((2999, 3032, 296), (2999, 3032, 40), (37, 40, 16392), (5, 24, 72))
"""(m, n, k) of the companions. No tile divides them: primes, times 8 where a row must be a multiple of 16 bytes. The
first has more tiles than CTAs fit the device for every tile and ends K inside a stage; the second has one k-block a
tile, fewer than any ring has stages; the third has k-blocks for every split of K, and an odd number of them; the
fourth is smaller than any tile."""

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


def tolerance(k: int, out_dtype: str, slack: float = 1.0) -> Tolerance:
    """The tolerance of float32 accumulation over `k` products, rounded once to `out_dtype`.

    Sums have the size sqrt(k), and so has `absolute`. Its share of that covers float32 accumulation in tensor cores,
    which truncates: a bias of up to 2^-24 for each of k / 16 additions. bf16 accumulation is beyond it by a factor of
    ten and more, and even one additional rounding to the output dtype is beyond `norm`. `slack` multiplies all three:
    libraries that round partial sums to the output dtype need 8.
    """
    unit = _UNIT_ROUNDOFF[out_dtype]
    share = 2.0**-12 + k * 2.0**-27
    return Tolerance(
        relative=slack * 1.01 * unit,
        absolute=slack * share * math.sqrt(k),
        norm=slack * (1.15 * _RMS_OF_ROUNDOFF * unit + share),
    )


LIBRARY_SLACK = 8.0
"""cuBLAS may add split-K partial sums in the output dtype."""


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
    three products."""
    batch = min(problem.batch, 3)
    sizes = [(m if problem.a_major == "k" else ALIGNED_M[m], n, k) for m, n, k in COMPANION_SIZES]
    if schedule.arrangement == GEMV:
        # Only so many vectors: cut to as many as it takes.
        most = schedule.tile_m
        sizes = [(m, min(n, most), k) if schedule.swap_ab else (min(m, most), n, k) for m, n, k in sizes]
    found = [replace(problem, m=m, n=n, k=k, batch=batch) for m, n, k in sizes]
    return [companion for companion in found if not violations(companion, schedule, device)]


def shape(problem: Problem) -> str:
    """The sizes of a companion in words, such as `37x40x16392`, with the batch ahead where there is one."""
    return f"{problem.batch}x" * problem.batched + f"{problem.m}x{problem.n}x{problem.k}"


def wrong_elements(d: Any, reference: Any, allowed: Tolerance) -> tuple[int, int, int]:
    """(how many elements of `d` are wrong, row and column of the first); (0, -1, -1) when none is."""
    wrong = ~(abs(d - reference) <= abs(reference) * allowed.relative + allowed.absolute)
    count = int(wrong.sum())
    if not count:
        return 0, -1, -1
    first = int((wrong * 1).reshape(-1).argmax())  # torch has no argmax of booleans
    return count, first // d.shape[1], first % d.shape[1]
