"""`tileseek.matmul`: torch tensors through the best schedule known for their shapes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .api import best_schedule
from .codegen.plan import LaunchPlan, launch_plan
from .measure.gpus import hopper
from .space import BadInput, Problem
from .space.rules import TMA_ALIGNMENT

if TYPE_CHECKING:
    import torch

    from .measure.driver import BoundLaunch, Kernel

_BOUND = 1024
"""Bindings of kernels to addresses that are kept: torch hands out the same addresses again and again."""


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product of `a` [M, K] and `b` [K, N] on a Hopper GPU, enqueued on the current stream.

    Layouts are read off the strides, as in torch: `matmul(x, weight.T)` for `x` [M, K] and `weight` [N, K], both
    contiguous, is the layout `nt`. `out` [M, N] receives the result. The first call for a shape finds, compiles
    and loads the kernel; later ones only launch. There is no backward pass.

    Raises:
        BadInput: the tensors, their layout or the GPU are not supported; the message says what is.
    """
    import torch

    problem = _problem(a, b)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise BadInput("a or b requires a gradient, which matmul does not compute: valid is torch.no_grad()")
    if out is None:
        out = torch.empty((problem.m, problem.n), dtype=a.dtype, device=a.device)
    elif (out.shape, out.dtype, out.device) != ((problem.m, problem.n), a.dtype, a.device) or not out.is_contiguous():
        raise BadInput(
            f"out is {_words(out)}: valid is a contiguous {problem.m} x {problem.n} of {a.dtype} on {a.device}"
        )
    for name, tensor in (("a", a), ("b", b), ("out", out)):
        if tensor.data_ptr() % TMA_ALIGNMENT:
            raise BadInput(f"{name} starts at {tensor.data_ptr():#x}: valid are multiples of {TMA_ALIGNMENT} bytes")
    with torch.cuda.device(a.device):
        stream = torch.cuda.current_stream().cuda_stream
        _bound(problem, a.device.index, stream, a.data_ptr(), b.data_ptr(), out.data_ptr()).launch(stream)
    return out


def _problem(a: torch.Tensor, b: torch.Tensor) -> Problem:
    import torch

    dtypes = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    for name, tensor in (("a", a), ("b", b)):
        if tensor.ndim != 2 or not tensor.is_cuda or tensor.dtype not in dtypes:
            raise BadInput(f"{name} is {_words(tensor)}: valid is a matrix of bfloat16 or float16 on a CUDA device")
    if (a.dtype, a.device, a.shape[1]) != (b.dtype, b.device, b.shape[0]):
        raise BadInput(f"a is {_words(a)} and b is {_words(b)}: valid are M x K and K x N of one dtype on one device")
    # A matrix with one row or column is contiguous both ways: then the layout that has kernels is meant.
    layout = _letter("a", a, "nt") + _letter("b", b, "tn")
    return Problem(a.shape[0], b.shape[1], a.shape[1], dtypes[a.dtype], layout)


def _letter(name: str, tensor: torch.Tensor, preferred: str) -> str:
    fits = {"n": tensor.is_contiguous(), "t": tensor.T.is_contiguous()}
    for letter in preferred:
        if fits[letter]:
            return letter
    raise BadInput(f"{name} has strides {tuple(tensor.stride())}: valid is a contiguous matrix or the transpose of one")


def _words(tensor: torch.Tensor) -> str:
    return f"{' x '.join(map(str, tensor.shape)) or 'a scalar'} of {tensor.dtype} on {tensor.device}"


@functools.lru_cache(maxsize=_BOUND)
def _bound(problem: Problem, index: int, stream: int, a: int, b: int, d: int) -> BoundLaunch:
    from .measure.driver import BoundLaunch

    kernel, plan = _kernel(problem, index)
    return BoundLaunch(kernel, plan, a, b, d, _workspace(problem, index, stream).data_ptr())


@functools.cache
def _workspace(problem: Problem, index: int, stream: int) -> torch.Tensor:
    """Zeroed memory for the parts of tiles, one for each stream: launches of one stream run after each other."""
    import torch

    kernel, plan = _kernel(problem, index)
    return torch.zeros(max(1, kernel.workspace_bytes(plan)), dtype=torch.uint8, device=f"cuda:{index}")


@functools.cache
def _kernel(problem: Problem, index: int) -> tuple[Kernel, LaunchPlan]:
    from .codegen.compiler import compile_kernel
    from .measure.driver import Kernel

    gpu = hopper(index)
    schedule = best_schedule(problem, device=gpu.device).schedule
    compiled = compile_kernel(problem, schedule)
    if compiled.status != "ok":
        raise RuntimeError(f"schedule {schedule} cannot be compiled ({compiled.status}): {compiled.reason}")
    plan = launch_plan(problem, schedule)
    return Kernel(compiled.cubin, compiled.entry, plan, gpu.sm_count), plan
