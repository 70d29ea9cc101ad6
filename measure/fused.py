"""The epilogue as torch computes it: in float32 for reference, and as kernels of its own beside cuBLAS."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..space import Problem
from .lazy import torch
from .operands import OperandSet

FP8_LARGEST = 448.0
"""The largest number of e4m3 (PTX ISA, alternate floating-point formats)."""

EXACT_ACTIVATIONS = ("", "relu")
"""Those that keep integers integers, so that results can be right to the bit."""


def finish_exact(problem: Problem, product: Any, operands: OperandSet) -> Any:
    """`product` in float32, [m, n] or with a batch [batch, m, n], with the epilogue applied in place, and what D cannot
    hold at the end of its range, where conversions to 8 bits saturate."""
    return _saturate(problem, _finish(problem, product, operands))


def finish_apart(problem: Problem, operands: OperandSet, product: Any, done: Collection[str] = ()) -> None:
    """Apply the epilogue to `product` by elementwise kernels, in place, and round it to D where it is not D itself.

    What is in `done`, of `bias` and the words of scales, is already there.
    """
    if problem.epilogue != "none":
        _finish(problem, product, operands, done)
    if product is not operands.d:
        operands.d.copy_(_saturate(problem, product))


def _saturate(problem: Problem, d: Any) -> Any:
    return d.clamp_(-FP8_LARGEST, FP8_LARGEST) if problem.out_dtype == "fp8" else d


def _finish(problem: Problem, d: Any, operands: OperandSet, done: Collection[str] = ()) -> Any:
    fused = problem.fused
    functional = torch().nn.functional
    for word in fused.scales:
        if word not in done:
            scale = operands.scales[word]
            d.mul_(scale[:, None] if word == "scale_m" else scale)
    if fused.bias and "bias" not in done:
        d.add_(operands.bias if fused.bias == "n" else operands.bias[:, None])
    match fused.activation:
        case "relu":
            d.relu_()
        case "silu":
            functional.silu(d, inplace=True)
        case "gelu":
            torch().ops.aten.gelu_(d)
        case "gelu_tanh":
            torch().ops.aten.gelu_(d, approximate="tanh")
    if fused.residual:
        d.add_(operands.c)
    return d
