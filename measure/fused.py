"""The epilogue as torch computes it: in float32 for reference, and as kernels of its own beside cuBLAS."""

from __future__ import annotations

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
    return _saturate(problem, _finish(problem, product, operands, biased=False))


def finish_apart(problem: Problem, operands: OperandSet, product: Any, biased: bool) -> None:
    """Apply the epilogue to `product` by elementwise kernels, in place, and round it to D where it is not D itself; the
    bias is already there if `biased`."""
    if problem.epilogue != "none":
        _finish(problem, product, operands, biased)
    if product is not operands.d:
        operands.d.copy_(_saturate(problem, product))


def _saturate(problem: Problem, d: Any) -> Any:
    return d.clamp_(-FP8_LARGEST, FP8_LARGEST) if problem.out_dtype == "fp8" else d


def _finish(problem: Problem, d: Any, operands: OperandSet, biased: bool) -> Any:
    fused = problem.fused
    functional = torch().nn.functional
    if fused.bias and not biased:
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
