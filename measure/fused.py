"""The epilogue as torch computes it: in float32 for reference, and as kernels of its own beside cuBLAS."""

from __future__ import annotations

from typing import Any

from ..space import Problem
from .lazy import torch
from .operands import OperandSet

EXACT_ACTIVATIONS = ("", "relu")
"""Those that keep integers integers, so that results can be right to the bit."""


def finish_exact(problem: Problem, product: Any, operands: OperandSet) -> Any:
    """`product` in float32, [m, n] or with a batch [batch, m, n], with the epilogue applied in place."""
    return _finish(problem, product, operands, biased=False)


def finish_apart(problem: Problem, operands: OperandSet, biased: bool) -> None:
    """Apply the epilogue to D by elementwise kernels, in place; the bias is already there if `biased`."""
    _finish(problem, operands.d, operands, biased)


def _finish(problem: Problem, d: Any, operands: OperandSet, biased: bool) -> Any:
    fused = problem.fused
    functional = torch().nn.functional
    if fused.bias and not biased:
        bias = operands.bias.to(d.dtype)
        d.add_(bias if fused.bias == "n" else bias[:, None])
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
