"""Where the rows of a problem's matrices lie: distances in memory, which a launch says and a kernel does not know."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import DTYPE_BYTES, OUT_DTYPE_BYTES, TMA_ALIGNMENT, Problem
from .tiles import ceil_div


@dataclass(frozen=True, slots=True)
class Pitch:
    """Elements from row to row of a matrix as it is stored, and from each product of a batch to the next (0: the same
    matrix for all of them)."""

    row: int
    batch: int


@dataclass(frozen=True, slots=True)
class Pitches:
    """The pitches of A, B, D, of a residual C, and of the product where it is kept apart (`aux`)."""

    a: Pitch
    b: Pitch
    d: Pitch
    c: Pitch
    aux: Pitch = Pitch(0, 0)

    @classmethod
    def of(cls, problem: Problem) -> Pitches:
        """The closest rows that have the alignments of `problem`: without padding, unless it says otherwise."""

        def closest(matrix: str, element: int) -> Pitch:
            rows, columns = problem.stored(matrix)
            alignment = problem.alignment(matrix)
            unit = alignment // element
            row = ceil_div(columns, unit) * unit
            if alignment < TMA_ALIGNMENT and row % (2 * unit) == 0:
                row += unit  # no better aligned than the problem says
            return Pitch(row, 0 if matrix in problem.broadcast else rows * row)

        operand, out = DTYPE_BYTES[problem.dtype], OUT_DTYPE_BYTES[problem.out_dtype]
        d = closest("d", out)
        aux = closest("aux", out) if problem.fused.product_apart else Pitch(0, 0)
        return cls(closest("a", operand), closest("b", operand), d, d, aux)
