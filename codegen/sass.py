"""Machine code of a cubin: the instructions the audit counts, and the loops they are in.

The audit decodes the few instructions it looks for itself: it takes a millisecond, where nvdisasm takes longer to
start than NVRTC to compile a kernel. An instruction is 128 bits; its low nine bits name the operation, whatever
the operands are. The numbers were read off `nvdisasm -hex` on sm_90a, and tests compare every instruction of
generated kernels with nvdisasm's reading.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..space import BadInput

INSTRUCTION_BYTES = 16

OPERATIONS = {
    0x02F: "ELECT",
    0x044: "STSM",
    0x0CA: "R2UR",
    0x11D: "BAR",
    0x147: "BRA",
    0x183: "LDL",
    0x187: "STL",
    0x18F: "CCTL",
    0x192: "MEMBAR",
    0x1A7: "SYNCS",
    0x1B2: "SYNCS.EXCH",
    0x1B4: "UTMALDG",
    0x1B5: "UTMASTG",
    0x1C5: "WARPGROUP",
    0x1C8: "USETMAXREG",
    0x1F0: "HGMMA",
    0x1F3: "HGMMA",
}
"""Low nine bits of an instruction -> the name used here. `SYNCS.EXCH` initialises an mbarrier, `SYNCS` is every
other mbarrier operation, `HGMMA` any wgmma (of 8-bit operands it is nvdisasm's QGMMA), `LDL` and `STL` are local
memory, `CCTL` and `MEMBAR` cache invalidation and fences."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. Variants that the audit tells apart have names of their own: `HGMMA.gsb0` (ends a group of
    wgmmas), `WARPGROUP.ARRIVE` (wgmma.fence), `WARPGROUP.DEPBAR` (wgmma.wait_group), `UTMALDG.MULTICAST`."""

    offset: int
    """Bytes from the start of the kernel."""
    name: str
    """Empty for an operation that is not in `OPERATIONS`."""
    target: int | None = None
    """Byte offset that a branch (`BRA`) goes to."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Code from the target of a backward branch up to and with the branch."""

    instructions: int
    counts: Counter[str]


def decode(cubin: bytes, entry: str) -> tuple[Instruction, ...]:
    """The instructions of kernel `entry`, padding after its end included.

    Raises:
        ValueError: `cubin` is not a 64-bit ELF file with code for `entry`.
    """
    code = _section(cubin, f".text.{entry}")
    return tuple(
        _instruction(i * INSTRUCTION_BYTES, low, high) for i, (low, high) in enumerate(struct.iter_unpack("<QQ", code))
    )


def k_loops(code: Sequence[Instruction]) -> list[Loop]:
    """The innermost loops with wgmmas, in order.

    ptxas moves the spinning part of a wait behind the kernel, from where it branches back: such a branch also
    spans wgmmas. So each wgmma belongs to the shortest span that holds it, and of nested spans the inner counts.
    """
    spans = sorted(
        ((at.target, at.offset) for at in code if at.target is not None and at.target <= at.offset),
        key=lambda span: span[1] - span[0],
    )
    shortest = set()
    for at in code:
        if at.name.startswith("HGMMA"):
            shortest |= set([span for span in spans if span[0] <= at.offset <= span[1]][:1])
    inner = [a for a in shortest if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in shortest)]
    return [_loop(code, start, end) for start, end in sorted(inner)]


def in_wgmma_loops(code: Sequence[Instruction], name: str) -> int:
    """How many `name` instructions lie inside any loop, outer ones included, that also holds wgmmas."""
    inside = set()
    for branch in code:
        if branch.target is not None and branch.target <= branch.offset:
            body = [at for at in code if branch.target <= at.offset <= branch.offset]
            if any(at.name.startswith("HGMMA") for at in body):
                inside |= {at.offset for at in body if at.name == name}
    return len(inside)


def disassemble(cubin: bytes) -> str:
    """The listing of `nvdisasm`, for people to read.

    Raises:
        BadInput: nvdisasm is not installed, or does not accept `cubin`.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        result = subprocess.run([_nvdisasm(), "-c", file.name], capture_output=True, text=True, check=False)
    if result.returncode:
        raise BadInput(f"cubin of {len(cubin)} bytes is not valid for nvdisasm: {result.stderr.strip()}")
    return result.stdout


def _instruction(offset: int, low: int, high: int) -> Instruction:
    name = OPERATIONS.get(low & 0x1FF, "")
    if name == "BRA":
        # The distance in words of four bytes from the next instruction: its low byte, then (signed) the rest.
        rest = low >> 34 | (high & 0x3FFFF) << 30
        rest -= (rest >> 47) << 48
        return Instruction(offset, name, offset + INSTRUCTION_BYTES + 4 * (rest << 8 | low >> 16 & 0xFF))
    if name == "HGMMA" and high >> 20 & 7 != 7:
        name = "HGMMA.gsb0"
    elif name == "WARPGROUP":
        name += ".DEPBAR" if high >> 16 & 1 else ".ARRIVE"
    elif name == "UTMALDG" and high >> 11 & 1:
        name += ".MULTICAST"
    return Instruction(offset, name)


def _loop(code: Sequence[Instruction], start: int, end: int) -> Loop:
    body = [at for at in code if start <= at.offset <= end]
    return Loop(len(body), Counter(at.name for at in body if at.name))


def _section(elf: bytes, name: str) -> bytes:
    """The contents of an ELF section."""
    try:
        if elf[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        (table,) = struct.unpack_from("<Q", elf, 0x28)
        size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
        strings = headers[names][4]
        for header in headers:
            start = strings + header[0]
            if elf[start : elf.index(b"\0", start)].decode() == name:
                return elf[header[4] : header[4] + header[5]]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"damaged ELF file: {error}") from error
    raise ValueError(f"no section {name}")


def _nvdisasm() -> str:
    """nvdisasm as pip's nvidia-cuda-nvdisasm installs it, or else from PATH."""
    spec = find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(place).glob("*/bin/nvdisasm")):
            if os.access(found, os.X_OK):
                return str(found)
    if found_on_path := shutil.which("nvdisasm"):
        return found_on_path
    raise BadInput("nvdisasm is not installed: valid is pip's nvidia-cuda-nvdisasm, or the CUDA toolkit on PATH")
