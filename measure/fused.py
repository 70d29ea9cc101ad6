"""The epilogue as torch computes it: in float32 for reference, and as kernels of its own beside cuBLAS."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..space import Problem
from .lazy import torch
from .operands import ALPHA, BETA, OperandSet

FP8_LARGEST = 448.0
"""The largest number of e4m3 (PTX ISA, alternate floating-point formats)."""

EXACT_ACTIVATIONS = ("", "relu")
"""Those that keep integers integers, so that results can be right to the bit."""


def finish_exact(problem: Problem, product: Any, operands: OperandSet) -> dict[str, Any]:
    """The outputs by name, from `product` in float32, [m, n] or with a batch [batch, m, n], which is overwritten. What
    an output cannot hold is at the end of its range, where conversions to 8 bits saturate."""
    d = product.new_empty(operands.d.shape) if problem.fused.product_apart else product
    _before_activation(problem, product, operands)
    _finish(problem, product, d, operands)
    outputs = {"d": d, "aux": product} if problem.fused.aux else {"d": d}
    return {name: _saturate(problem, output) for name, output in outputs.items()}


def finish_apart(problem: Problem, operands: OperandSet, product: Any, done: Collection[str] = ()) -> None:
    """The outputs from the product where a library has put it, by elementwise kernels. A product of another dtype than
    D is finished in its own and then rounded.

    What is in `done`, of `alpha`, `bias` and the words of scales, is already there.
    """
    _before_activation(problem, product, operands, done)
    if problem.fused.aux and operands.outputs["aux"].matrix is not product:
        operands.outputs["aux"].matrix.copy_(_saturate(problem, product))
    d = operands.d if product.dtype == operands.d.dtype else product[..., : operands.d.shape[-1]]
    _finish(problem, product, d, operands)
    if d is not operands.d:
        operands.d.copy_(_saturate(problem, d))


def _saturate(problem: Problem, d: Any) -> Any:
    return d.clamp_(-FP8_LARGEST, FP8_LARGEST) if problem.out_dtype == "fp8" else d


def _before_activation(problem: Problem, product: Any, operands: OperandSet, done: Collection[str] = ()) -> None:
    fused = problem.fused
    for word in fused.scales:
        if word not in done:
            scale = operands.scales[word]
            product.mul_(scale[:, None] if word == "scale_m" else scale)
    if fused.alpha and "alpha" not in done:
        product.mul_(ALPHA)
    if fused.bias and "bias" not in done:
        product.add_(operands.bias if fused.bias == "n" else operands.bias[:, None])


def _finish(problem: Problem, product: Any, d: Any, operands: OperandSet) -> None:
    """What comes after, from `product` to `d`, which may be the same memory or its left half."""
    fused = problem.fused
    gate, up = product.chunk(2, -1) if fused.gated else (product, None)
    if fused.activation:
        _activate(fused.activation, gate, d)
        gate = d
    if up is not None:
        torch().mul(gate, up, out=d)
    elif gate.data_ptr() != d.data_ptr():
        d.copy_(gate)
    if fused.residual:
        d.add_(operands.c, alpha=BETA if fused.beta else 1.0)


def _activate(name: str, x: Any, out: Any) -> None:
    aten = torch().ops.aten
    match name:
        case "relu":
            torch().clamp_min(x, 0, out=out)
        case "silu":
            aten.silu.out(x, out=out)
        case "gelu":
            aten.gelu.out(x, out=out)
        case "gelu_tanh":
            aten.gelu.out(x, approximate="tanh", out=out)
