"""Operands and outputs on the GPU: random data in rotation, poisoned outputs between guard bands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..space import DTYPE_BYTES, OUT_DTYPE_BYTES, Device, Pitch, Pitches, Problem, ceil_div
from .check import SLICE_ELEMENTS
from .lazy import torch
from .library import torch_call

DEVICE = "cuda"

GUARD_BYTES = 64 * 1024
"""On each side of an output. A multiple of 256, so that the output keeps the alignment of its allocation."""

POISON = 0xFF
"""Every byte of an output before a launch: NaN in every dtype."""

ALPHA, BETA = 0.5, -2.0
"""The numbers of epilogues that take them: powers of two, which keep results exact that are exact without."""

MAX_SETS = 256
"""Bounds the time of setting up tiny problems: 256 sets of 700 KB are three times the L2."""

TORCH_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def torch_dtype(dtype: str) -> Any:
    """torch's type of a problem's dtype."""
    return getattr(torch(), TORCH_NAMES[dtype])


def set_count(problem: Problem, device: Device, l2_multiple: float) -> int:
    """Operand sets that together exceed `l2_multiple` times the L2; two at least, MAX_SETS at most."""
    return max(2, min(MAX_SETS, ceil_div(int(device.l2_bytes * l2_multiple) + 1, problem.bytes)))


def needed_bytes(problem: Problem, sets: int, references: int) -> int:
    """GPU memory of `sets` operand sets and `references` float32 references with the temporaries to make them."""
    pitches = Pitches.of(problem)
    call, fused = torch_call(problem), problem.fused
    operand, out = DTYPE_BYTES[problem.dtype], OUT_DTYPE_BYTES[problem.out_dtype]
    ab = sum(_elements(problem, name, getattr(pitches, name)) for name in ("a", "b"))
    d, aux = _elements(problem, "d", pitches.d), _elements(problem, "aux", pitches.aux)
    stored = ab * operand + (d * (1 + fused.residual) + aux * fused.aux) * out + 4 * GUARD_BYTES
    if call.operands != problem.dtype:
        stored += ab * DTYPE_BYTES[call.operands]
    if call.result != problem.out_dtype or fused.gated:
        stored += max(d, aux) * OUT_DTYPE_BYTES[call.result]
    upcast = 4 * (max(problem.m, problem.n) * problem.k + problem.k)
    temporaries = 8 * 4 * max(SLICE_ELEMENTS, problem.n)
    results = problem.batch * problem.m * (problem.n + problem.d_columns)
    return sets * stored + references * 4 * results + upcast + temporaries


@dataclass(frozen=True, slots=True)
class Output:
    """A matrix that a problem writes, each row contiguous, with a first dimension for the products of a batch."""

    matrix: Any
    buffer: Any
    """Its bytes with a guard band on each side."""
    padding: Any
    """The elements between its rows, as a view of [rows, padding]."""

    @property
    def rows(self) -> Any:
        """It as [rows, columns], with the rows of all products."""
        return self.matrix.flatten(0, -2)

    def guards_touched(self) -> Any:
        """The number of changed bytes in the guard bands and between rows, as a tensor."""
        bands = (self.buffer[:GUARD_BYTES] != POISON).sum() + (self.buffer[-GUARD_BYTES:] != POISON).sum()
        return bands + (self.padding.view(torch().uint8) != POISON).sum()


@dataclass(frozen=True, slots=True)
class OperandSet:
    """One A, B and D. `a` is viewed as [m, k] and `b` as [k, n], whatever their storage. With a batch the first
    dimension are its products; the stride is 0 there if the operand is broadcast."""

    a: Any
    b: Any
    outputs: Mapping[str, Output]
    """D, and the auxiliary output of an epilogue that has one, by the names `d` and `aux`."""
    product: Any
    """Where libraries put the product, [m, n]: D or the auxiliary output, or memory of its own when they do not round
    to that dtype or D is narrower."""
    bias: Any = None
    """The bias vector of an epilogue that has one."""
    c: Any = None
    """The residual of an epilogue that has one, as D lies."""
    scales: Mapping[str, Any] = field(default_factory=dict)
    """Vectors of the epilogue that scale the product, by their words; of the number `scale` the vector of one."""
    wide: tuple[Any, Any] | None = None
    """A and B in bf16, for libraries that do not multiply their dtype."""

    @property
    def inputs(self) -> list[Any]:
        """A, B, and what the epilogue reads; of operands that are broadcast the one matrix."""
        return [_one_matrix(tensor) for tensor in (self.a, self.b, self.bias, self.c) if tensor is not None]

    @property
    def d(self) -> Any:
        """D, [m, n] or half as wide."""
        return self.outputs["d"].matrix

    @property
    def values(self) -> dict[str, int | float]:
        """What a launch is bound to: addresses and numbers by name."""
        outputs = {name: output.matrix for name, output in self.outputs.items()}
        tensors = {"a": self.a, "b": self.b, **outputs, "bias": self.bias, "c": self.c, **self.scales}
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
        return {**addresses, "alpha": ALPHA, "beta": BETA}

    def fill_normal(self, seed: int) -> None:
        """Draw the inputs anew from N(0, 1), in place, and scales from 1/2 to 1; B so that sums of a gated epilogue are
        N(0, 1) too, for its products would overflow fp16."""
        generator = _generator(seed)
        for tensor in self.inputs:
            size = self._size(tensor, self.b.shape[-2] ** -0.5)
            if tensor.itemsize == 1:  # no sampler draws 8 bits; N(0, 1) is well inside the range of e4m3 and e5m2
                normal = torch().randn(tensor.shape, generator=generator, dtype=torch().bfloat16, device=DEVICE)
                tensor.copy_(normal.mul_(size))
            else:
                tensor.normal_(generator=generator)
                if size != 1:
                    tensor.mul_(size)
        for scale in self.scales.values():
            scale.uniform_(0.5, 1, generator=generator)
        self._widen()

    def fill_integers(self, seed: int) -> None:
        """Draw the inputs anew from the integers -2 to 2, in place, B of a gated epilogue from 64ths of them, and
        scales from powers of two."""
        generator = _generator(seed)
        for tensor in self.inputs:
            integers = torch().randint(-2, 3, tensor.shape, generator=generator, device=DEVICE)
            tensor.copy_(integers.to(torch().bfloat16).mul_(self._size(tensor, 1 / 64)))
        for scale in self.scales.values():
            scale.copy_(2.0 ** torch().randint(-1, 2, scale.shape, generator=generator, device=DEVICE))
        self._widen()

    def _size(self, tensor: Any, gated: float) -> float:
        """What multiplies an input: 1, or `gated` for B where D is a product of two sums, which fp16 must hold."""
        gates = self.d.shape[-1] != self.product.shape[-1]
        return gated if gates and tensor.data_ptr() == self.b.data_ptr() else 1.0

    def _widen(self) -> None:
        for own, copy in zip((self.a, self.b), self.wide or (), strict=False):
            _one_matrix(copy).copy_(_one_matrix(own))

    def poison(self) -> None:
        """Make every element of the outputs a NaN, and the guard bands their known value."""
        for output in self.outputs.values():
            output.buffer.fill_(POISON)

    def guards_touched(self) -> Any:
        """The number of changed bytes around all outputs and between their rows, as a tensor."""
        return sum(output.guards_touched() for output in self.outputs.values())


def normal_set(problem: Problem, seed: int) -> OperandSet:
    """N(0, 1) operands: never zeros, on which the GPU draws less power and runs faster."""
    operands = _empty_set(problem)
    operands.fill_normal(seed)
    return operands


def integer_set(problem: Problem, seed: int) -> OperandSet:
    """Integers from -2 to 2, and scales that are powers of two: products and sums are exact in float32, so that a
    result is right to the bit."""
    operands = _empty_set(problem)
    operands.fill_integers(seed)
    return operands


def _one_matrix(tensor: Any) -> Any:
    """The one matrix of an operand that is broadcast over a batch; any other as it is."""
    return tensor[0] if tensor.ndim == 3 and tensor.stride(0) == 0 else tensor


def _generator(seed: int) -> Any:
    return torch().Generator(device=DEVICE).manual_seed(seed)


def _empty_set(problem: Problem) -> OperandSet:
    pitches = Pitches.of(problem)
    call = torch_call(problem)
    out = torch_dtype(problem.out_dtype)

    def operand(name: str, dtype: str, row_major: bool) -> Any:
        pitch = getattr(pitches, name)
        memory = torch().empty(_elements(problem, name, pitch), dtype=torch_dtype(dtype), device=DEVICE)
        stored = _stored(problem, name, pitch, memory)
        return stored if row_major else stored.mT

    def operands_of(dtype: str) -> tuple[Any, Any]:
        return operand("a", dtype, problem.a_major == "k"), operand("b", dtype, problem.b_major == "n")

    def output(name: str) -> Output:
        pitch = getattr(pitches, name)
        size = _elements(problem, name, pitch) * out.itemsize
        buffer = torch().empty(size + 2 * GUARD_BYTES, dtype=torch().uint8, device=DEVICE)
        memory = buffer[GUARD_BYTES:-GUARD_BYTES].view(out)
        padding = memory.view(-1, pitch.row)[:, problem.stored(name)[1] :]
        return Output(_stored(problem, name, pitch, memory), buffer, padding)

    fused = problem.fused
    outputs = {name: output(name) for name in (["d", "aux"] if fused.aux else ["d"])}
    whole = "aux" if fused.product_apart else "d"
    if call.result == problem.out_dtype and whole in outputs:
        product = outputs[whole].matrix
    else:
        product = operand(whole, call.result, row_major=True)
    axis = {"m": problem.m, "n": problem.n}
    lengths = {"scale": 1, "scale_m": problem.m, "scale_n": problem.n}
    bias = torch_dtype(problem.bias_dtype)
    a, b = operands_of(problem.dtype)
    operands = OperandSet(
        a=a,
        b=b,
        outputs=outputs,
        product=product,
        bias=torch().empty(axis[fused.bias], dtype=bias, device=DEVICE) if fused.bias else None,
        c=operand("d", problem.out_dtype, row_major=True) if fused.residual else None,
        scales={word: torch().empty(lengths[word], dtype=torch().float32, device=DEVICE) for word in fused.scales},
        wide=operands_of(call.operands) if call.operands != problem.dtype else None,
    )
    operands.poison()
    return operands


def _elements(problem: Problem, name: str, pitch: Pitch) -> int:
    """Elements of the memory in which a matrix (`a`, `b`, `d`) lies, in all products."""
    return problem.copies(name) * problem.stored(name)[0] * pitch.row


def _stored(problem: Problem, name: str, pitch: Pitch, memory: Any) -> Any:
    """The matrix as it is stored in `memory`, with a dimension for the products of a batch."""
    rows, columns = problem.stored(name)
    if not problem.batched:
        return memory.as_strided((rows, columns), (pitch.row, 1), memory.storage_offset())
    shape = (problem.batch, rows, columns)
    return memory.as_strided(shape, (pitch.batch, pitch.row, 1), memory.storage_offset())
