"""`tileseek.matmul`: torch tensors through the best schedule known for their shapes."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from .api import best_schedule
from .codegen.plan import LaunchPlan, launch_plan
from .measure.gpus import hopper
from .measure.operands import TORCH_NAMES
from .space import ACTIVATIONS, DTYPE_BYTES, FAST, OUT_DTYPE_BYTES, BadInput, Epilogue, Problem, unsupported
from .space.epilogue import SCALES
from .space.problem import TMA_ALIGNMENT

if TYPE_CHECKING:
    import torch

    from .measure.driver import BoundLaunch, Kernel

Values = tuple[tuple[str, int | float], ...]
"""What a launch is bound to, by the names of its plan."""

_KERNEL_NAMES = {"residual": "c", "out": "d"}
"""The kernel's names of `matmul`'s tensors, where they differ."""

_BOUND = 1024
"""Bindings of kernels to addresses that are kept: torch hands out the same addresses again and again."""


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    alpha: float = 1.0,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: torch.Tensor | None = None,
    beta: float = 1.0,
    aux: torch.Tensor | None = None,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    accumulate: str = FAST,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    deterministic: bool = False,
) -> torch.Tensor:
    """activation(`alpha` x `scale_a` x `a` x `b` x `scale_b` + `bias`) + `beta` x `residual` on a Hopper GPU, in one
    kernel on the current stream.

    `a` is [M, K] and `b` is [K, N], both of bfloat16, float16, float8_e4m3fn or float8_e5m2; 8-bit matrices are
    contiguous along K. `bias` is [N], or [M, 1] to run along the rows, of the output's dtype (bfloat16 for 8 bits);
    `activation` is one of `space.ACTIVATIONS`; `residual` is a contiguous [M, N] of the output's dtype. `gated`: the
    first half of the columns of `b`, and of `bias`, gates the second, and the result is activation(gate) times the
    other half, [M, N / 2] like the residual. `aux`, a contiguous [M, N] of the output's dtype, receives what comes
    before the activation. One kernel serves all values of `alpha` and `beta` but 1. `scale_a` is
    one number or has one for each row, [M] or [M, 1], `scale_b` one or one for each column, [N] or [1, N], contiguous
    in float32; two single numbers cost a small kernel that multiplies them: better give their product as one.
    `out_dtype` is that of the inputs, or bfloat16 for 8-bit ones, unless it is given: bfloat16, float16, float32, or
    float8_e4m3fn for 8-bit inputs. Sums are in float32 and rounded once; those of 8-bit products are in the tensor
    cores' 14 bits, with `accumulate="promoted"` added up in float32 every 128 of K. With `deterministic` sums are never
    in the order in which CTAs happen to end, so that equal inputs give equal bits.

    Layouts are read off the strides, as in torch: `matmul(x, weight.T)` for `x` [M, K] and `weight` [N, K], both
    contiguous, is the layout `nt`; either may be row-major or column-major. `out` [M, N] receives the result. The
    first call for a shape finds, compiles and loads the kernel; later ones only launch, and CUDA graphs can capture
    them. There is no backward pass.

    Raises:
        BadInput: the tensors, their layout or the GPU are not supported; the message says what is.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise BadInput("the package torch is not installed: valid is an installation of tileseek[tune]") from error

    problem = _problem(a, b, out_dtype, accumulate)
    scales = _scales(a, b, scale_a, scale_b)
    fused = Epilogue(
        scales=tuple(scales),
        alpha=_is_number("alpha", alpha),
        bias=_bias_axis(problem, a.device, bias),
        aux=aux is not None,
        activation=activation or "",
        gated=gated,
        residual=residual is not None,
        beta=_is_number("beta", beta),
    )
    if activation is not None and activation not in ACTIVATIONS:
        raise BadInput(f"activation is {activation!r}: valid are {', '.join(ACTIVATIONS)}")
    if fused.beta and residual is None:
        raise BadInput(f"beta is {beta!r} without a residual: valid is 1")
    problem = replace(problem, epilogue=str(fused), deterministic=deterministic)
    for name, matrix, columns in (("residual", residual, problem.d_columns), ("aux", aux, problem.n)):
        if matrix is not None:
            _check_matrix(name, matrix, problem, columns, a.device)
    given = {"a": a, "b": b, "bias": bias, "residual": residual, "aux": aux}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
        raise BadInput("an input requires a gradient, which matmul does not compute: valid is torch.no_grad()")
    if out is None:
        shape = (problem.m, problem.d_columns)
        out = torch.empty(shape, dtype=_torch_dtype(problem.out_dtype), device=a.device)
    else:
        _check_matrix("out", out, problem, problem.d_columns, a.device)
    tensors["out"] = out
    for name, tensor in tensors.items():
        if tensor.data_ptr() % TMA_ALIGNMENT:
            raise BadInput(f"{name} starts at {tensor.data_ptr():#x}: valid are multiples of {TMA_ALIGNMENT} bytes")
    tensors |= scales
    with torch.cuda.device(a.device):
        stream = torch.cuda.current_stream().cuda_stream
        addresses = ((_KERNEL_NAMES.get(name, name), tensor.data_ptr()) for name, tensor in tensors.items())
        values = (*addresses, ("alpha", float(alpha)), ("beta", float(beta)))
        if torch.cuda.is_current_stream_capturing():
            _launch_into_graph(problem, a.device.index, stream, values)
        else:
            _bound(problem, a.device.index, stream, values).launch(stream)
    return out


def _scales(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The scales by their words in an epilogue, in the order of the words."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for name, scale, word, count in (
        ("scale_a", scale_a, "scale_m", a.shape[0]),
        ("scale_b", scale_b, "scale_n", b.shape[1]),
    ):
        if scale is None:
            continue
        vector = (count, 1) if name == "scale_a" else (1, count)
        shapes = {(count,): word, vector: word, (): "scale", (1,): "scale", (1, 1): "scale"}
        if tuple(scale.shape) not in shapes or (scale.dtype, scale.device) != (torch.float32, a.device):
            raise BadInput(
                f"{name} is {_words(scale)}: valid is one number, [{count}] or {list(vector)}"
                f" of {torch.float32} on {a.device}"
            )
        if not scale.is_contiguous():
            raise BadInput(f"{name} has strides {tuple(scale.stride())}: valid is a contiguous vector")
        word = shapes[tuple(scale.shape)]
        found[word] = found[word].reshape(()) * scale.reshape(()) if word in found else scale
    return {word: found[word] for word in SCALES if word in found}


def _is_number(name: str, value: float) -> bool:
    """Whether a factor has to be multiplied by, after checking that it is one."""
    if not isinstance(value, (int, float)):
        raise BadInput(f"{name} is {value!r}: valid is a number")
    return value != 1


def _bias_axis(problem: Problem, device: torch.device, bias: torch.Tensor | None) -> str:
    """The axis that a bias runs along, after checking it."""
    if bias is None:
        return ""
    dtype = _torch_dtype(problem.bias_dtype)
    shapes = {(problem.n,): "n", (problem.m, 1): "m"}
    if tuple(bias.shape) not in shapes or (bias.dtype, bias.device) != (dtype, device):
        raise BadInput(f"bias is {_words(bias)}: valid is [{problem.n}] or [{problem.m}, 1] of {dtype} on {device}")
    if not bias.is_contiguous():
        raise BadInput(f"bias has strides {tuple(bias.stride())}: valid is a contiguous vector")
    return shapes[tuple(bias.shape)]


def _check_matrix(name: str, matrix: torch.Tensor, problem: Problem, columns: int, device: torch.device) -> None:
    """Refuse what is not a contiguous matrix of the output's dtype with as many rows and that many columns."""
    wanted = ((problem.m, columns), _torch_dtype(problem.out_dtype), device)
    if (tuple(matrix.shape), matrix.dtype, matrix.device) != wanted or not matrix.is_contiguous():
        raise BadInput(
            f"{name} is {_words(matrix)}: valid is a contiguous {problem.m} x {columns} of {wanted[1]} on {device}"
        )


def _torch_dtype(dtype: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
    return found


def _problem(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None, accumulate: str) -> Problem:
    dtypes = {_torch_dtype(word): word for word in TORCH_NAMES}
    operands = {_torch_dtype(word): word for word in DTYPE_BYTES}
    for name, tensor in (("a", a), ("b", b)):
        if tensor.ndim != 2 or not tensor.is_cuda or tensor.dtype not in operands:
            valid = ", ".join(TORCH_NAMES[word] for word in DTYPE_BYTES)
            raise BadInput(f"{name} is {_words(tensor)}: valid is a matrix of {valid} on a CUDA device")
    if out_dtype is not None and dtypes.get(out_dtype) not in OUT_DTYPE_BYTES:
        valid = ", ".join(TORCH_NAMES[word] for word in OUT_DTYPE_BYTES)
        raise BadInput(f"out_dtype is {out_dtype}: valid are {valid}")
    out = "" if out_dtype is None else dtypes[out_dtype]
    if (a.dtype, a.device, a.shape[1]) != (b.dtype, b.device, b.shape[0]):
        raise BadInput(f"a is {_words(a)} and b is {_words(b)}: valid are M x K and K x N of one dtype on one device")
    sizes = (a.shape[0], b.shape[1], a.shape[1])
    layouts = itertools.product(_letters("a", a, "nt"), _letters("b", b, "tn"))
    dtype = operands[a.dtype]
    found = [Problem(*sizes, dtype, a_ + b_, out_dtype=out, accumulate=accumulate) for a_, b_ in layouts]
    if len(found) == 1:
        return found[0]
    # A matrix with one row or column is contiguous both ways: then the layout that has kernels is meant.
    device = hopper(a.device.index).device
    return next((problem for problem in found if not any(unsupported(problem, device))), found[0])


def _letters(name: str, tensor: torch.Tensor, preferred: str) -> list[str]:
    """The letters of a layout that fit a tensor's strides, the preferred one first."""
    fits = {"n": tensor.is_contiguous(), "t": tensor.T.is_contiguous()}
    if not any(fits.values()):
        raise BadInput(
            f"{name} has strides {tuple(tensor.stride())}: valid is a contiguous matrix or the transpose of one"
        )
    return [letter for letter in preferred if fits[letter]]


def _words(tensor: torch.Tensor) -> str:
    return f"{' x '.join(map(str, tensor.shape)) or 'a scalar'} of {tensor.dtype} on {tensor.device}"


@functools.lru_cache(maxsize=_BOUND)
def _bound(problem: Problem, index: int, stream: int, values: Values) -> BoundLaunch:
    return _bind(problem, index, values, _workspace(problem, index, stream))


def _launch_into_graph(problem: Problem, index: int, stream: int, values: Values) -> None:
    """Launch while the stream is captured. The workspace is the graph's own, like every tensor made in a capture, and
    made zero again by each replay."""
    _bind(problem, index, values, _zeros(problem, index)).launch(stream)


def _bind(problem: Problem, index: int, values: Values, workspace: torch.Tensor) -> BoundLaunch:
    from .measure.driver import BoundLaunch

    kernel, plan = _kernel(problem, index)
    return BoundLaunch(kernel, plan, {**dict(values), "workspace": workspace.data_ptr()})


@functools.cache
def _workspace(problem: Problem, index: int, stream: int) -> torch.Tensor:
    """The memory in which parts of tiles meet, one for each stream: launches of one stream run after each other."""
    return _zeros(problem, index)


def _zeros(problem: Problem, index: int) -> torch.Tensor:
    """A new workspace."""
    import torch

    kernel, plan = _kernel(problem, index)
    return torch.zeros(kernel.workspace_bytes(plan), dtype=torch.uint8, device=f"cuda:{index}")


@functools.cache
def _kernel(problem: Problem, index: int) -> tuple[Kernel, LaunchPlan]:
    import torch

    from .codegen.compiler import compile_kernel
    from .measure.driver import Kernel

    if torch.cuda.is_current_stream_capturing():
        raise BadInput(
            f"{problem.key} is new while a CUDA graph is captured: valid is a call before, to load its kernel"
        )
    gpu = hopper(index)
    schedule = best_schedule(problem, device=gpu.device).schedule
    compiled = compile_kernel(problem, schedule)
    if compiled.status != "ok":
        raise RuntimeError(f"schedule {schedule} cannot be compiled ({compiled.status}): {compiled.reason}")
    plan = launch_plan(problem, schedule)
    return Kernel(compiled.cubin, compiled.entry, plan, gpu.sm_count), plan
