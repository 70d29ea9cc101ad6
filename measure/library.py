"""What NVIDIA's libraries compute of a problem in one call; kernels of their own do the rest."""

from __future__ import annotations

from dataclasses import dataclass

from ..space import DTYPE_BYTES, OUT_DTYPE_BYTES, BadInput, Problem

FP8_MULTIPLE = 16
"""torch._scaled_mm takes an n and a k that are multiples of this."""


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """The dtypes of operands and result in a call of a library."""

    operands: str
    """The problem's own, or bf16 where the library does not multiply those: copies that are made beforehand."""
    result: str
    scales: tuple[str, ...] = ()
    """The scales of the epilogue that it applies itself: a number, or vectors, as those of torch._scaled_mm."""

    @property
    def vectors(self) -> bool:
        """Whether these are vectors: then both operands have one."""
        return bool(self.scales) and "scale" not in self.scales


def torch_call(problem: Problem) -> LibraryCall:
    """The call that stands for cuBLAS's default: torch.mm, or torch._scaled_mm of 8-bit operands.

    Raises:
        BadInput: no library computes the problem.
    """
    scaled = problem.n % FP8_MULTIPLE == problem.k % FP8_MULTIPLE == 0 and not problem.batched
    return _call(problem, wide=problem.dtype == "fp8" and not scaled)


def cublaslt_call(problem: Problem) -> LibraryCall:
    """The call of cuBLASLt; its heuristic may still offer no algorithm.

    Raises:
        BadInput: no library computes the problem.
    """
    return _call(problem, wide=False)


def _call(problem: Problem, wide: bool) -> LibraryCall:
    if DTYPE_BYTES[problem.dtype] == 1 and problem.layout != "nt":
        raise BadInput(f"problem is {problem.key}: valid for measuring 8-bit operands is layout nt")
    # No library of NVIDIA's multiplies two matrices of e5m2.
    operands = "bf16" if wide or problem.dtype == "fp8_e5m2" else problem.dtype
    result = _result(problem, operands)
    return LibraryCall(operands, result, _scales(problem, operands, result))


def _result(problem: Problem, operands: str) -> str:
    """D's dtype where the library rounds to it, else one from which D is rounded afterwards."""
    if operands == "fp8":
        # torch's kernels of elements do no arithmetic in 8 bits: what they finish is kept in bf16.
        unfinished = OUT_DTYPE_BYTES[problem.out_dtype] == 1 and problem.epilogue not in ("none", "scale")
        return "bf16" if unfinished else problem.out_dtype
    return problem.out_dtype if problem.out_dtype in (operands, "fp32") else "fp32"


def _scales(problem: Problem, operands: str, result: str) -> tuple[str, ...]:
    words = problem.fused.scales
    if operands != "fp8":
        return ()
    if "scale" in words:
        return ("scale",)
    # Vectors go with results in bf16 alone in every version of torch; a batch would have as many of them as products.
    return words if result == "bf16" and not problem.batched else ()
