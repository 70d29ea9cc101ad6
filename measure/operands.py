"""Operands and outputs on the GPU: random data in rotation, poisoned outputs between guard bands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..space import OUT_DTYPE_BYTES, Device, Problem, ceil_div
from .check import SLICE_ELEMENTS
from .lazy import torch

DEVICE = "cuda"

GUARD_BYTES = 64 * 1024
"""On each side of an output. A multiple of 256, so that the output keeps the alignment of its allocation."""

POISON = 0xFF
"""Every byte of an output before a launch: NaN in bf16, fp16 and fp32."""

MAX_SETS = 256
"""Bounds the time of setting up tiny problems: 256 sets of 700 KB are three times the L2."""

TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def torch_dtype(dtype: str) -> Any:
    """torch's type of a problem's dtype."""
    return getattr(torch(), TORCH_NAMES[dtype])


def set_count(problem: Problem, device: Device, l2_multiple: float) -> int:
    """Operand sets that together exceed `l2_multiple` times the L2; two at least, MAX_SETS at most."""
    return max(2, min(MAX_SETS, ceil_div(int(device.l2_bytes * l2_multiple) + 1, problem.bytes)))


def needed_bytes(problem: Problem, sets: int, references: int) -> int:
    """GPU memory of `sets` operand sets and `references` float32 references with the temporaries to make them."""
    upcast = 4 * (problem.n * problem.k + problem.k)
    temporaries = 8 * 4 * max(SLICE_ELEMENTS, problem.n)
    return sets * (problem.bytes + 2 * GUARD_BYTES) + references * 4 * problem.m * problem.n + upcast + temporaries


@dataclass(frozen=True, slots=True)
class OperandSet:
    """One A, B and D. `a` is viewed as [m, k] and `b` as [k, n], whatever their storage; `d` is [m, n] contiguous."""

    a: Any
    b: Any
    d: Any
    buffer: Any
    """The bytes of D with a guard band on each side."""
    bias: Any = None
    """The bias vector of an epilogue that has one."""
    c: Any = None
    """The residual of an epilogue that has one, [m, n] contiguous."""

    @property
    def inputs(self) -> list[Any]:
        """A, B, and what the epilogue reads."""
        return [tensor for tensor in (self.a, self.b, self.bias, self.c) if tensor is not None]

    @property
    def values(self) -> dict[str, int | float]:
        """What a launch is bound to: addresses by name."""
        tensors = {"a": self.a, "b": self.b, "d": self.d, "bias": self.bias, "c": self.c}
        return {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}

    def fill_normal(self, seed: int) -> None:
        """Draw the inputs anew from N(0, 1), in place."""
        generator = _generator(seed)
        for tensor in self.inputs:
            tensor.normal_(generator=generator)

    def poison(self) -> None:
        """Make every element of D a NaN, and the guard bands their known value."""
        self.buffer.fill_(POISON)

    def guards_touched(self) -> Any:
        """The number of changed bytes in the guard bands, as a tensor."""
        return (self.buffer[:GUARD_BYTES] != POISON).sum() + (self.buffer[-GUARD_BYTES:] != POISON).sum()


def normal_set(problem: Problem, seed: int) -> OperandSet:
    """N(0, 1) operands: never zeros, on which the GPU draws less power and runs faster."""
    operands = _empty_set(problem)
    operands.fill_normal(seed)
    return operands


def integer_set(problem: Problem, seed: int) -> OperandSet:
    """Integers from -2 to 2: products and sums are exact in float32, so that a result is right to the bit."""
    operands = _empty_set(problem)
    generator = _generator(seed)
    for tensor in operands.inputs:
        tensor.copy_(torch().randint(-2, 3, tensor.shape, generator=generator, device=DEVICE))
    return operands


def _generator(seed: int) -> Any:
    return torch().Generator(device=DEVICE).manual_seed(seed)


def _empty_set(problem: Problem) -> OperandSet:
    def operand(rows: int, columns: int, row_major: bool) -> Any:
        shape = (rows, columns) if row_major else (columns, rows)
        tensor = torch().empty(shape, dtype=torch_dtype(problem.dtype), device=DEVICE)
        return tensor if row_major else tensor.t()

    def vector(*shape: int) -> Any:
        return torch().empty(shape, dtype=torch_dtype(problem.out_dtype), device=DEVICE)

    fused = problem.fused
    out_bytes = problem.m * problem.n * OUT_DTYPE_BYTES[problem.out_dtype]
    buffer = torch().empty(out_bytes + 2 * GUARD_BYTES, dtype=torch().uint8, device=DEVICE)
    operands = OperandSet(
        a=operand(problem.m, problem.k, problem.a_major == "k"),
        b=operand(problem.k, problem.n, problem.b_major == "n"),
        d=buffer[GUARD_BYTES:-GUARD_BYTES].view(torch_dtype(problem.out_dtype)).view(problem.m, problem.n),
        buffer=buffer,
        bias=vector(problem.m if fused.bias == "m" else problem.n) if fused.bias else None,
        c=vector(problem.m, problem.n) if fused.residual else None,
    )
    operands.poison()
    return operands
