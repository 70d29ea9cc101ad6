"""Tensors as they lie in memory, and the problem they make together. Knows shapes, strides and addresses, not torch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from .space import DTYPE_BYTES, OUT_DTYPE_BYTES, BadInput, Pitch, Pitches, Problem, ceil_div
from .space.problem import TMA_ALIGNMENT


@dataclass(frozen=True, slots=True)
class View:
    """A matrix, or with three dimensions a batch of them: what torch calls its shape and strides, in elements, and the
    remainder of its address by 16."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def copies(self) -> int:
        """Different matrices in it."""
        return self.shape[0] if len(self.shape) == 3 and self.strides[0] else 1


@dataclass(frozen=True, slots=True)
class Storage:
    """A view as rows of contiguous elements."""

    row_major: bool
    pitch: Pitch
    alignment: int
    """Bytes that the address of every row is a multiple of, at most 16."""


@functools.lru_cache(maxsize=4096)
def describe(
    a: View, b: View, out: View, residual: View | None, like: Problem, aux: View | None = None
) -> tuple[Problem, Pitches]:
    """The problem out = epilogue(a x b), and the pitches of its matrices; `aux` is the auxiliary output. Of `like` are
    dtypes, epilogue and all else that is not geometry.

    Raises:
        BadInput: the elements of no dimension of a matrix are neighbours, or rows of the output are not.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    element, out_element = DTYPE_BYTES[like.dtype], OUT_DTYPE_BYTES[like.out_dtype]
    first, second = _best("a", a, element, True), _best("b", b, element, False)
    result = _output("out", out, out_element)
    added = result if residual is None else _row_major("residual", residual, out_element)
    kept = None if aux is None else _output("aux", aux, out_element)
    problem = replace(
        like,
        m=out.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        layout=("n" if first.row_major else "t") + ("n" if second.row_major else "t"),
        batch=batch,
        broadcast="".join(name for name, view in (("a", a), ("b", b)) if batch > 1 and view.copies == 1),
        a_align=first.alignment,
        b_align=second.alignment,
        d_align=min(storage.alignment for storage in (result, added, kept) if storage),
    )
    return problem, Pitches(first.pitch, second.pitch, result.pitch, added.pitch, *([kept.pitch] if kept else []))


def _best(name: str, view: View, element: int, row_major: bool) -> Storage:
    """The best aligned storage of an operand, which is contiguous both ways where it has one row or column; of equal
    ones that in the major order `row_major`."""
    found = [storage for order in (row_major, not row_major) if (storage := _storage(view, order, element))]
    if not found:
        raise BadInput(
            f"{name} has strides {view.strides}: valid is 1 along one of the last two dimensions, not 0 along the other"
        )
    return max(found, key=lambda storage: storage.alignment)


def _output(name: str, view: View, element: int) -> Storage:
    storage = _row_major(name, view, element)
    if storage.pitch.row < view.shape[-1]:
        raise BadInput(f"{name} has strides {view.strides}: valid are rows that do not overlap")
    return storage


def _row_major(name: str, view: View, element: int) -> Storage:
    storage = _storage(view, True, element)
    if storage is None or view.copies != (view.shape[0] if len(view.shape) == 3 else 1):
        raise BadInput(f"{name} has strides {view.strides}: valid is 1 along the last dimension, and 0 along none")
    return storage


def _storage(view: View, row_major: bool, element: int) -> Storage | None:
    """The view as rows, or as columns; None where the elements of each are not neighbours."""
    (rows, columns), (pitch, step) = view.shape[-2:], view.strides[-2:]
    if not row_major:
        rows, columns, pitch, step = columns, rows, step, pitch
    if (step != 1 and columns > 1) or (pitch == 0 and rows > 1):
        return None
    if rows == 1:  # its pitch means nothing
        pitch = ceil_div(columns * element, TMA_ALIGNMENT) * TMA_ALIGNMENT // element
    batch = view.strides[0] if view.copies > 1 else 0
    alignment = math.gcd(TMA_ALIGNMENT, view.offset, pitch * element, batch * element)
    return Storage(row_major, Pitch(pitch, batch), alignment)
