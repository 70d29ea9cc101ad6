"""The problem that tensors make: layouts, pitches, batches, alignments, from shapes, strides and addresses alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tileseek.space import BadInput, Pitch, Problem

from tileseek.views import View, describe


def dense(*shape: int, offset: int = 0) -> View:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return View(shape, tuple(strides), offset)


def transposed(view: View) -> View:
    (*batch, rows, columns), (*step, row, column) = view.shape, view.strides
    return View((*batch, columns, rows), (*step, column, row), view.offset)


LIKE = Problem(8, 8, 8)
A, WEIGHT, OUT = dense(64, 128), dense(256, 128), dense(64, 256)


def problem(a: View, b: View, out: View = OUT, residual: View | None = None) -> Problem:
    return describe(a, b, out, residual, LIKE if residual is None else replace(LIKE, epilogue="residual"))[0]


def test_layouts_are_read_off_the_strides() -> None:
    assert problem(A, transposed(WEIGHT)) == Problem(64, 256, 128)
    assert problem(transposed(dense(128, 64)), dense(128, 256)) == Problem(64, 256, 128, layout="tn")
    assert describe(A, transposed(WEIGHT), OUT, None, LIKE)[1].d == Pitch(256, 0)


def test_a_part_of_a_matrix_has_its_pitch() -> None:
    like = Problem(8, 8, 8, "fp16", epilogue="relu")
    found, pitches = describe(View((64, 100), (128, 1)), View((100, 256), (1, 104)), OUT, None, like)
    assert found == Problem(64, 256, 100, "fp16", a_align=16, b_align=16, epilogue="relu")
    assert (pitches.a, pitches.b) == (Pitch(128, 0), Pitch(104, 0))


@pytest.mark.parametrize(
    ("a", "alignment"),
    [
        (View((64, 128), (129, 1)), 2),
        (View((64, 128), (132, 1)), 8),
        (dense(64, 128, offset=2), 2),
        (dense(64, 128, offset=4), 4),
        (View((1, 128), (7, 1)), 16),
        (View((1, 128), (7, 1), 8), 8),
    ],
)
def test_the_alignment_is_that_of_every_row(a: View, alignment: int) -> None:
    assert problem(a, transposed(WEIGHT), dense(a.shape[0], 256)).alignment("a") == alignment


def test_the_worse_of_output_and_residual_counts() -> None:
    assert problem(A, transposed(WEIGHT), OUT, dense(64, 256, offset=4)).alignment("d") == 4
    assert problem(A, transposed(WEIGHT), View((64, 256), (258, 1)), OUT).alignment("d") == 4


def test_one_row_or_column_is_stored_as_is_best() -> None:
    """K = 1 is contiguous both ways, and only m- and n-major rows are multiples of 16 bytes."""
    assert problem(dense(64, 1), dense(1, 256)) == Problem(64, 256, 1, layout="tn")
    assert problem(dense(64, 1), dense(1, 256)).alignment("a") == 16


def test_a_gated_product_has_a_narrow_output_and_a_wide_auxiliary_one() -> None:
    like = replace(LIKE, n=16, epilogue="aux+silu+gated+residual")
    half, aux = dense(64, 128), View((64, 256), (264, 1))
    found, pitches = describe(A, transposed(WEIGHT), half, half, like, aux=aux)
    assert found == Problem(64, 256, 128, epilogue=like.epilogue)
    assert (pitches.d, pitches.c, pitches.aux) == (Pitch(128, 0), Pitch(128, 0), Pitch(264, 0))
    found, _ = describe(A, transposed(WEIGHT), half, half, like, aux=View((64, 256), (264, 1), 8))
    assert found.alignment("aux") == found.alignment("d") == 8
    with pytest.raises(BadInput, match=r"aux has strides .* rows that do not overlap"):
        describe(A, transposed(WEIGHT), half, half, like, aux=View((64, 256), (128, 1)))


def test_batches() -> None:
    out = dense(5, 64, 256)
    a, b = dense(5, 64, 128), dense(5, 128, 256)
    assert problem(a, b, out) == Problem(64, 256, 128, layout="nn", batch=5)
    assert problem(A, b, out).broadcast == "a"
    assert problem(a, dense(1, 128, 256), out).broadcast == "b"
    assert problem(View((5, 64, 128), (0, 128, 1)), transposed(WEIGHT), out).broadcast == "ab"
    found, pitches = describe(View((5, 64, 128), (128, 5 * 128, 1)), b, out, None, LIKE)
    assert found.alignment("a") == 16
    assert (pitches.a, pitches.d) == (Pitch(640, 128), Pitch(256, 64 * 256))
    assert problem(View((5, 64, 128), (64 * 128 + 2, 128, 1)), b, out).alignment("a") == 4
    assert problem(dense(1, 64, 128), dense(1, 128, 256), dense(1, 64, 256)) == Problem(64, 256, 128, layout="nn")


@pytest.mark.parametrize(
    ("a", "b", "out", "words"),
    [
        (View((64, 128), (256, 2)), transposed(WEIGHT), OUT, "a has strides"),
        (View((64, 128), (0, 1)), transposed(WEIGHT), OUT, "a has strides"),
        (A, View((128, 256), (2, 512)), OUT, "b has strides"),
        (A, transposed(WEIGHT), View((64, 256), (1, 64)), "out has strides"),
        (A, transposed(WEIGHT), View((64, 256), (128, 1)), "rows that do not overlap"),
        (dense(5, 64, 128), transposed(WEIGHT), View((5, 64, 256), (0, 256, 1)), "out has strides"),
    ],
)
def test_views_that_have_no_rows_are_refused(a: View, b: View, out: View, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        problem(a, b, out)
