"""`tileseek.matmul`: torch tensors through the best schedule known for their shapes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from .api import best_schedule
from .codegen.plan import launch_plan
from .measure.gpus import hopper
from .measure.operands import TORCH_NAMES
from .space import (
    ACTIVATIONS,
    DTYPE_BYTES,
    FAST,
    OUT_DTYPE_BYTES,
    BadInput,
    Device,
    Epilogue,
    Pitches,
    Problem,
    Schedule,
)
from .space.epilogue import SCALES
from .space.problem import TMA_ALIGNMENT
from .views import View, describe

if TYPE_CHECKING:
    import torch

    from .measure.driver import BoundLaunch, Kernel

Values = tuple[tuple[str, int | float], ...]
"""What a launch is bound to, by the names of its plan."""

_KERNEL_NAMES = {"residual": "c", "out": "d"}
"""The kernel's names of `matmul`'s tensors, where they differ."""

_OTHERS = 8
"""Schedules that are tried where the best cannot be compiled."""

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

    `a` is [M, K] and `b` is [K, N], or one or both have a batch of them as the first dimension, as in torch.matmul;
    both of bfloat16, float16, float8_e4m3fn or float8_e5m2, 8-bit matrices contiguous along K. `bias` is [N], or [M, 1]
    to run along the rows, of the output's dtype (bfloat16 for 8 bits); `activation` is one of `space.ACTIVATIONS`;
    `residual` has the result's shape and dtype. `gated`: the first half of the columns of `b`, and of `bias`, gates the
    second, and the result is activation(gate) times the other half, [M, N / 2] like the residual. `aux`, [M, N] of the
    output's dtype, receives what comes before the activation. One kernel serves all values of `alpha` and `beta` but 1.
    `scale_a` is one number or has one for each row, [M] or [M, 1], `scale_b` one or one for each column, [N] or [1, N],
    contiguous in float32; two single numbers cost a small kernel that multiplies them: better give their product as
    one. `out_dtype` is that of the inputs, or bfloat16 for 8-bit ones, unless it is given: bfloat16, float16, float32,
    or float8_e4m3fn for 8-bit inputs. Sums are in float32 and rounded once; those of 8-bit products are in the tensor
    cores' 14 bits, with `accumulate="promoted"` added up in float32 every 128 of K. With `deterministic` sums are never
    in the order in which CTAs happen to end, so that equal inputs give equal bits.

    Layouts are read off the strides, as in torch: `matmul(x, weight.T)` for `x` [M, K] and `weight` [N, K] is the
    layout `nt`. Any view will do whose elements are neighbours along one of the last two dimensions, and for
    `residual`, `aux` and `out`, which receives the result, along the last. Rows that start at multiples of 16 bytes are
    fastest; others have kernels for elements of 16 bits, without `gated`, and for `a` and `b` alone with `aux`. Empty
    matrices give what torch gives. The first call for a shape finds, compiles and loads the kernel; later ones only
    launch, and CUDA graphs can capture them. There is no backward pass.

    Raises:
        BadInput: the tensors, their layout or the GPU are not supported; the message says what is.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise BadInput("the package torch is not installed: valid is an installation of tileseek[tune]") from error

    shape = _shape(a, b)
    like = _words_of(a, out_dtype, accumulate)
    scales = _scales(a, b, scale_a, scale_b)
    if activation is not None and activation not in ACTIVATIONS:
        raise BadInput(f"activation is {activation!r}: valid are {', '.join(ACTIVATIONS)}")
    fused = Epilogue(
        scales=tuple(scales),
        alpha=_is_number("alpha", alpha),
        bias=_bias_axis(like, shape, a.device, bias),
        aux=aux is not None,
        activation=activation or "",
        gated=gated,
        residual=residual is not None,
        beta=_is_number("beta", beta),
    )
    if fused.beta and residual is None:
        raise BadInput(f"beta is {beta!r} without a residual: valid is 1")
    if gated and shape[-1] % 2:
        raise BadInput(f"b has {shape[-1]} columns: valid is an even number with gated, for gate and up")
    like = replace(like, epilogue=str(fused), deterministic=deterministic)
    dtype = _torch_dtype(like.out_dtype)
    result_shape = (*shape[:-1], shape[-1] // 2) if gated else shape
    for name, matrix, wanted in (("residual", residual, result_shape), ("aux", aux, shape), ("out", out, result_shape)):
        if matrix is not None and (tuple(matrix.shape), matrix.dtype, matrix.device) != (wanted, dtype, a.device):
            raise BadInput(f"{name} is {_words(matrix)}: valid is {_sizes(wanted)} of {dtype} on {a.device}")
    given = {"a": a, "b": b, "bias": bias, "residual": residual, "aux": aux}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
        raise BadInput("an input requires a gradient, which matmul does not compute: valid is torch.no_grad()")
    if out is None:
        out = torch.empty(result_shape, dtype=dtype, device=a.device)
    if 0 in shape:
        return out
    if a.shape[-1] == 0:
        return _without_terms(out, fused, shape, bias, aux, residual, beta)
    tensors["out"] = out
    if b.ndim == 2 and a.ndim == 3 and "scale_m" not in scales and fused.bias != "m":
        tensors = _folded(tensors)
    views = {name: _view(tensor) for name, tensor in tensors.items() if name != "bias"}
    problem, pitches = describe(views["a"], views["b"], views["out"], views.get("residual"), like, aux=views.get("aux"))
    tensors |= scales
    with torch.cuda.device(a.device):
        stream = torch.cuda.current_stream().cuda_stream
        addresses = ((_KERNEL_NAMES.get(name, name), tensor.data_ptr()) for name, tensor in tensors.items())
        values = (*addresses, ("alpha", float(alpha)), ("beta", float(beta)))
        if torch.cuda.is_current_stream_capturing():
            _launch_into_graph(problem, pitches, a.device.index, stream, values)
        else:
            _bound(problem, pitches, a.device.index, stream, values).launch(stream)
    return out


def _scales(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The scales by their words in an epilogue, in the order of the words."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for name, scale, word, count in (
        ("scale_a", scale_a, "scale_m", a.shape[-2]),
        ("scale_b", scale_b, "scale_n", b.shape[-1]),
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


def _bias_axis(like: Problem, shape: tuple[int, ...], device: torch.device, bias: torch.Tensor | None) -> str:
    """The axis that a bias of a product of that shape runs along, after checking it."""
    if bias is None:
        return ""
    rows, columns = shape[-2:]
    dtype = _torch_dtype(like.bias_dtype)
    shapes = {(columns,): "n", (rows, 1): "m"}
    if tuple(bias.shape) not in shapes or (bias.dtype, bias.device) != (dtype, device):
        raise BadInput(f"bias is {_words(bias)}: valid is [{columns}] or [{rows}, 1] of {dtype} on {device}")
    if not bias.is_contiguous():
        raise BadInput(f"bias has strides {tuple(bias.stride())}: valid is a contiguous vector")
    return shapes[tuple(bias.shape)]


def _torch_dtype(dtype: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
    return found


def _shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The shape of the result, after checking the operands."""
    operands = [_torch_dtype(word) for word in DTYPE_BYTES]
    for name, tensor in (("a", a), ("b", b)):
        if tensor.ndim not in (2, 3) or not tensor.is_cuda or tensor.dtype not in operands:
            valid = ", ".join(TORCH_NAMES[word] for word in DTYPE_BYTES)
            raise BadInput(
                f"{name} is {_words(tensor)}: valid is a matrix of {valid} on a CUDA device, or a batch of them"
            )
    batches = {tensor.shape[0] for tensor in (a, b) if tensor.ndim == 3}
    if len(batches) > 1:
        batches.discard(1)
    if (a.dtype, a.device, a.shape[-1]) != (b.dtype, b.device, b.shape[-2]) or len(batches) > 1:
        raise BadInput(
            f"a is {_words(a)} and b is {_words(b)}: valid are M x K and K x N of one dtype on one device, and equal"
            " batches"
        )
    return (*batches, a.shape[-2], b.shape[-1])


def _words_of(a: torch.Tensor, out_dtype: torch.dtype | None, accumulate: str) -> Problem:
    """A problem of any size with the dtypes and sums that are asked for."""
    dtypes = {_torch_dtype(word): word for word in TORCH_NAMES}
    operands = {_torch_dtype(word): word for word in DTYPE_BYTES}
    if out_dtype is not None and dtypes.get(out_dtype) not in OUT_DTYPE_BYTES:
        valid = ", ".join(TORCH_NAMES[word] for word in OUT_DTYPE_BYTES)
        raise BadInput(f"out_dtype is {out_dtype}: valid are {valid}")
    out = "" if out_dtype is None else dtypes[out_dtype]
    return Problem(128, 128, 128, operands[a.dtype], out_dtype=out, accumulate=accumulate)


def _without_terms(
    out: torch.Tensor,
    fused: Epilogue,
    shape: tuple[int, ...],
    bias: torch.Tensor | None,
    aux: torch.Tensor | None,
    residual: torch.Tensor | None,
    beta: float,
) -> torch.Tensor:
    """Store the epilogue of a product of that shape whose sums have no terms, computed in float32."""
    import torch

    before = torch.zeros(shape, dtype=torch.float32, device=out.device)
    if bias is not None:
        before += bias
    if aux is not None:
        aux.copy_(before)
    gate, up = before.chunk(2, -1) if fused.gated else (before, None)
    functional = torch.nn.functional
    match fused.activation:
        case "":
            d = gate
        case "gelu_tanh":
            d = functional.gelu(gate, approximate="tanh")
        case activation:
            d = getattr(functional, activation)(gate)
    if up is not None:
        d = d * up
    return out.copy_(d if residual is None else d + beta * residual)


def _folded(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch of matrices times one as a single matrix with all their rows, where the rows lie evenly."""
    try:
        return {
            name: tensor.view(-1, tensor.shape[-1]) if tensor.ndim == 3 else tensor for name, tensor in tensors.items()
        }
    except RuntimeError:  # torch's view makes no copies
        return tensors


def _view(tensor: torch.Tensor) -> View:
    return View(tuple(tensor.shape), tensor.stride(), tensor.data_ptr() % TMA_ALIGNMENT)


def _words(tensor: torch.Tensor) -> str:
    return f"{_sizes(tuple(tensor.shape))} of {tensor.dtype} on {tensor.device}"


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a scalar"


@functools.lru_cache(maxsize=_BOUND)
def _bound(problem: Problem, pitches: Pitches, index: int, stream: int, values: Values) -> BoundLaunch:
    return _bind(problem, pitches, index, values, _workspace(problem, index, stream))


def _launch_into_graph(problem: Problem, pitches: Pitches, index: int, stream: int, values: Values) -> None:
    """Launch while the stream is captured. The workspace is the graph's own, like every tensor made in a capture, and
    made zero again by each replay."""
    _bind(problem, pitches, index, values, _zeros(problem, index)).launch(stream)


def _bind(problem: Problem, pitches: Pitches, index: int, values: Values, workspace: torch.Tensor) -> BoundLaunch:
    from .measure.driver import BoundLaunch

    kernel, schedule = _kernel(problem, index)
    plan = launch_plan(problem, schedule, pitches)
    return BoundLaunch(kernel, plan, {**dict(values), "workspace": workspace.data_ptr()})


@functools.cache
def _workspace(problem: Problem, index: int, stream: int) -> torch.Tensor:
    """The memory in which parts of tiles meet, one for each stream: launches of one stream run after each other."""
    return _zeros(problem, index)


def _zeros(problem: Problem, index: int) -> torch.Tensor:
    """A new workspace."""
    import torch

    kernel, schedule = _kernel(problem, index)
    size = kernel.workspace_bytes(launch_plan(problem, schedule))
    return torch.zeros(size, dtype=torch.uint8, device=f"cuda:{index}")


@functools.cache
def _kernel(problem: Problem, index: int) -> tuple[Kernel, Schedule]:
    import torch

    from .codegen.compiler import compile_kernel
    from .measure.driver import Kernel

    if torch.cuda.is_current_stream_capturing():
        raise BadInput(
            f"{problem.key} is new while a CUDA graph is captured: valid is a call before, to load its kernel"
        )
    gpu = hopper(index)
    reasons = []
    for schedule in _choices(problem, gpu.device):
        compiled = compile_kernel(problem, schedule)
        if compiled.status == "ok":
            kernel = Kernel(compiled.cubin, compiled.entry, launch_plan(problem, schedule), gpu.sm_count)
            return kernel, schedule
        reasons.append(f"{schedule} ({compiled.status}): {compiled.reason}")
    raise RuntimeError(f"no schedule for {problem.key} can be compiled: {'; '.join(reasons)}")


def _choices(problem: Problem, device: Device) -> Iterator[Schedule]:
    """The best schedule known, and for where the compiler spoils its kernel others that the analytic model likes."""
    from .cost_model.draft import draft

    yield best_schedule(problem, device=device).schedule
    yield from draft(problem, device, _OTHERS)
