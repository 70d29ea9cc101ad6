"""How the epilogue cuts a warpgroup's tile: what one chunk of shared memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..space import Problem, Schedule, store_pieces
from ..space.resources import tile_columns


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk of the epilogue stores: `width` columns of D in one 64-row block of a warpgroup."""

    block: int
    halves: tuple[int, ...]
    """The first columns of what it is made from in the kernel's tile: one, or those of a gate and of its up."""
    width: int
    owner: int
    """The CTA of the split that adds the parts of the piece and stores it."""
    turn: int
    """How many pieces its owner has stored before it."""

    @property
    def column(self) -> int:
        """Its first column in the tile of D."""
        return self.halves[0]

    @property
    def row(self) -> str:
        """Its first row, as a CUDA expression of `row`."""
        return _from("row", 64 * self.block)

    def place(self, problem: Problem, s: Schedule, skipped: int = 0) -> str:
        """The TMA coordinates in D of the piece, or of what is left when rows are skipped, as CUDA expressions of
        `row`, `column` and `at`."""
        row, column = _from("row", 64 * self.block + skipped), _from("column", self.column)
        place = f"{row}, {column}" if s.swap_ab else f"{column}, {row}"
        return place + ", at.batch" * problem.batched


def _from(name: str, offset: int) -> str:
    return f"{name} + {offset}" if offset else name


def pieces(problem: Problem, s: Schedule) -> Iterator[Piece]:
    """The pieces of a warpgroup's tile in the order of storing, dealt to the CTAs that share K in turn."""
    owners = s.split_k if s.dealt else 1
    order = 0
    columns = tile_columns(problem, s)
    for block in range(s.m64_per_warpgroup):
        for column, width in store_pieces(columns, s.epilogue_n):
            yield Piece(block, tuple(range(column, s.tile_n, columns)), width, order % owners, order // owners)
            order += 1
