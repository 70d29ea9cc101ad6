"""Where epilogues put pieces in shared memory, compiled for the CPU from the kernel's own text: as TMA swizzles them,
and without bank conflicts."""

from __future__ import annotations

import ctypes

import native
import pytest
from tileseek.codegen import plan, stores

WIDTHS = (8, 16, 32, 64)
"""Columns of a piece."""

HOST = """
#define __device__
#define __forceinline__ inline
typedef unsigned int u32;
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    texts = {"rows": stores._PIECE_ADDRESS, "columns": stores._PIECE_ADDRESS_TRANSPOSED}
    parts = [HOST]
    for name, text in texts.items():
        parts.append(f"namespace {name} {{\n{text}\n}}")
        parts += [
            f'extern "C" u32 {name}_{width}(int unit, int thread) '
            f"{{ return {name}::piece_address<{width}>(0, unit, thread); }}"
            for width in WIDTHS
        ]
    return native.library("\n".join(parts), tmp_path_factory.mktemp("swizzle"), "swizzle")


def swizzled(offset: int, swizzle_bytes: int) -> int:
    """Where TMA puts a byte of a box whose rows are as wide as the swizzle: units of 16 bytes change places by the bits
    above 128 bytes (PTX ISA, swizzling modes)."""
    units = max(1, swizzle_bytes // 16)
    return offset ^ (offset >> 7) % units << 4


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ("rows", "columns"))
def test_matrices_lie_as_tma_moves_them_and_in_all_banks(compiled: ctypes.CDLL, name: str, width: int) -> None:
    address = getattr(compiled, f"{name}_{width}")
    lanes = 16 if width == 8 else 32  # stmatrix.x2 reads the addresses of half a warp
    written: set[int] = set()
    for warp in range(4):
        for unit in range(0, width // 8, 2):
            found = [address(unit, 32 * warp + lane) for lane in range(lanes)]
            for lane, place in enumerate(found):
                # Lane i has row i % 8 of matrix i / 8: the upper and lower eight rows, then those of the next unit.
                row, column = 16 * warp + lane % 16 // 8 * 8 + lane % 8, unit + lane // 16
                if name == "rows":
                    expected = swizzled(row * 2 * width + 16 * column, plan.piece_swizzle_bytes(2 * width))
                else:  # the piece is transposed: rows of 64 elements, one for each column
                    expected = swizzled((column * 8 + lane % 8) * 128 + row // 8 * 16, 128)
                assert place == expected
            for matrix in range(0, lanes, 8):
                banks = {place // 16 % 8 for place in found[matrix : matrix + 8]}
                assert len(banks) == 8, "eight rows of 16 bytes fill all 32 banks"
            written |= set(found)
    assert written == set(range(0, 64 * width * 2, 16)), "every 16 bytes of the piece are written, and no others"
