"""The references: cuBLAS as torch calls it, and every algorithm that cuBLASLt's heuristic offers.

cuBLAS is column-major. Our row-major D[m, n] is its D'[n, m], so it computes D' = B' A' with B as its first operand.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..space import FAST, Pitch, Pitches, Problem
from .fused import finish_apart
from .lazy import torch
from .library import LibraryCall, cublaslt_call, torch_call
from .operands import ALPHA, DEVICE, OperandSet, torch_dtype

WORKSPACE_BYTES = 64 * 2**20
REQUESTED_ALGORITHMS = 64
"""More than the heuristic of cuBLASLt 13 returns (8 on H200, however many are asked for)."""

# cublasLt.h, cublas_api.h and library_types.h of CUDA 13.0.
_COMPUTE_32F = 68
_CUDA_R_32F = 0
_TYPES = {"fp16": 2, "bf16": 14, "fp32": _CUDA_R_32F, "fp8": 28}
_OP_N, _OP_T = 0, 1
_DESC_TRANSA, _DESC_TRANSB, _DESC_FAST_ACCUM = 3, 4, 25
_DESC_A_SCALE_POINTER, _DESC_B_SCALE_POINTER, _DESC_A_SCALE_MODE, _DESC_B_SCALE_MODE = 17, 18, 31, 32
_SCALE_OUTER_VECTOR = 3
_LAYOUT_BATCH_COUNT, _LAYOUT_STRIDED_BATCH_OFFSET = 5, 6
_INVALID_VALUE, _NOT_SUPPORTED = 7, 15
_PREF_MAX_WORKSPACE_BYTES = 1
_CONFIG = {"id": 0, "tile": 1, "stages": 6, "cluster": 8, "splitk": 2, "reduction": 3, "swizzle": 4, "custom": 5}
_CLUSTER_IS_16_BIT = ("cluster",)


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class LibraryError(RuntimeError):
    """A library refused to compute what its heuristic offered."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Something of NVIDIA's that computes a problem: `enqueue(operands)` puts one call on the current torch stream."""

    name: str
    enqueue: Any


def cublas_default(problem: Problem) -> Reference:
    """What torch runs: `mm` or `bmm`, `addmm` for a bias along n, or `_scaled_mm` of 8-bit operands with the same kind
    of sums, and the rest of an epilogue as kernels of its own. Operands that it does not take are copied to bf16
    beforehand.

    Raises:
        BadInput: torch computes nothing like it.
    """
    call = torch_call(problem)
    one_type = call.operands == call.result == problem.out_dtype
    fused = problem.fused
    biased = fused.bias == "n" and one_type and not problem.batched and not fused.scales
    scaled = fused.alpha and one_type
    multiply, multiply_scaled = (torch().bmm, torch().baddbmm) if problem.batched else (torch().mm, torch().addmm)
    alpha = ALPHA if fused.alpha else 1
    ones = _ones(problem, call)
    dtype = torch_dtype(call.result)
    done = [*(["bias"] if biased else call.scales), *(["alpha"] if scaled else [])]

    def enqueue(operands: OperandSet) -> None:
        a, b, product = _matrices(operands, call)
        if call.operands == "fp8":
            rows, columns = _scales(operands, call, ones)
            if call.vectors:
                rows, columns = rows[:, None], columns[None]
            fast = problem.accumulate == FAST
            torch()._scaled_mm(a, b, scale_a=rows, scale_b=columns, out_dtype=dtype, use_fast_accum=fast, out=product)
        elif biased:
            torch().addmm(operands.bias, a, b, alpha=alpha, out=product)
        elif scaled:
            multiply_scaled(product, a, b, beta=0, alpha=alpha, out=product)
        elif call.operands == call.result:
            multiply(a, b, out=product)
        else:
            multiply(a, b, out_dtype=dtype, out=product)
        finish_apart(problem, operands, product, done)

    return Reference("cublas" if call.operands == problem.dtype else f"cublas_{call.operands}", enqueue)


def _matrices(operands: OperandSet, call: LibraryCall) -> tuple[Any, Any, Any]:
    """A, B and the result of a library's call."""
    a, b = operands.a, operands.b
    if operands.wide is not None and call.operands != "fp8":
        a, b = operands.wide
    whole = operands.outputs.get("aux", operands.outputs["d"]).matrix
    fits = (whole.dtype, whole.shape) == (torch_dtype(call.result), operands.product.shape)
    return a, b, whole if fits else operands.product


def _ones(problem: Problem, call: LibraryCall) -> tuple[Any, Any]:
    """Scales of A and B that change nothing, as long as those that the call takes."""
    lengths = (problem.m, problem.n) if call.vectors else (1, 1)
    a, b = (torch().ones(length, dtype=torch().float32, device=DEVICE) for length in lengths)
    return a, b


def _scales(operands: OperandSet, call: LibraryCall, ones: tuple[Any, Any]) -> tuple[Any, Any]:
    """The scales of A and of B in a call, where there are none ones; a number goes with A."""
    given = {word: operands.scales[word] for word in call.scales}
    return given.get("scale", given.get("scale_m", ones[0])), given.get("scale_n", ones[1])


class CublasLt:
    """A handle and its workspace, for calls on one stream."""

    def __init__(self, stream: int) -> None:
        self._library = ctypes.CDLL(_loaded_library())
        self._stream = ctypes.c_void_p(stream)
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = torch().empty(WORKSPACE_BYTES, dtype=torch().uint8, device="cuda")

    def algorithms(self, problem: Problem) -> list[Reference]:
        """Every algorithm that the heuristic returns for `problem`, in its order.

        Raises:
            BadInput: cuBLASLt computes nothing like it.
        """
        call = cublaslt_call(problem)
        narrow = problem.fused.gated and not problem.fused.aux
        if call.result not in (torch_call(problem).result, *([] if narrow else [problem.out_dtype])):
            return []  # operand sets have room for one other result beside the outputs
        operand, out = _TYPES[call.operands], _TYPES[call.result]
        description = ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(description), _COMPUTE_32F, _CUDA_R_32F)
        # B' as stored: [k, n] column-major when k is contiguous, to be transposed; else [n, k] as it is.
        b_transposed = problem.b_major == "k"
        a_transposed = problem.a_major == "m"
        self._set_operation(description, _DESC_TRANSA, b_transposed)
        self._set_operation(description, _DESC_TRANSB, a_transposed)
        if call.operands == "fp8":
            self._set(description, _DESC_FAST_ACCUM, ctypes.c_int8(problem.accumulate == FAST))
        ones = _ones(problem, call)
        if call.vectors:
            for attribute in (_DESC_A_SCALE_MODE, _DESC_B_SCALE_MODE):
                self._set(description, attribute, ctypes.c_int32(_SCALE_OUTER_VECTOR))
            self._set_scales(description, *ones)
        pitches = Pitches.of(problem)
        first = self._layout(operand, problem, "b", pitches.b)
        second = self._layout(operand, problem, "a", pitches.a)
        product, pitch = ("aux", pitches.aux) if problem.fused.product_apart else ("d", pitches.d)
        output = self._layout(out, problem, product, pitch)
        # What would be added to the product (nothing is) has no 8-bit types.
        added = self._layout(_TYPES["bf16"], problem, product, pitch) if call.result == "fp8" else output
        preference = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            _PREF_MAX_WORKSPACE_BYTES,
            ctypes.byref(limit),
            ctypes.c_size_t(ctypes.sizeof(limit)),
        )
        found = (_HeuristicResult * REQUESTED_ALGORITHMS)()
        count = ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle,
            description,
            first,
            second,
            added,
            output,
            preference,
            REQUESTED_ALGORITHMS,
            found,
            ctypes.byref(count),
        )
        if status and status not in ((_NOT_SUPPORTED, _INVALID_VALUE) if call.vectors else (_NOT_SUPPORTED,)):
            raise RuntimeError(f"cublasLtMatmulAlgoGetHeuristic: status {status}")
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        return [
            self._reference(problem, call, ones, rank, found[rank].algorithm, description, first, second, added, output)
            for rank in range(count.value)
            if found[rank].state == 0
        ]

    def version(self) -> str:
        """Such as `13.1.1`."""
        function = self._library.cublasLtGetVersion
        function.restype = ctypes.c_size_t
        number = int(function())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def _reference(
        self,
        problem: Problem,
        call: LibraryCall,
        ones: tuple[Any, Any],
        rank: int,
        algorithm: _Algorithm,
        *descriptors: ctypes.c_void_p,
    ) -> Reference:
        description, first, second, added, output = descriptors
        alpha, zero = ctypes.c_float(ALPHA if problem.fused.alpha else 1), ctypes.c_float(0)
        matmul = self._library.cublasLtMatmul

        def enqueue(operands: OperandSet) -> None:
            a, b, product = _matrices(operands, call)
            if call.scales:
                self._set_scales(description, *_scales(operands, call, ones))
            d = ctypes.c_void_p(product.data_ptr())
            status = matmul(
                self._handle,
                description,
                ctypes.byref(alpha),
                ctypes.c_void_p(b.data_ptr()),
                first,
                ctypes.c_void_p(a.data_ptr()),
                second,
                ctypes.byref(zero),
                d,
                added,
                d,
                output,
                ctypes.byref(algorithm),
                ctypes.c_void_p(self._workspace.data_ptr()),
                ctypes.c_size_t(WORKSPACE_BYTES),
                self._stream,
            )
            if status:
                raise LibraryError(f"cublasLtMatmul: status {status}")
            finish_apart(problem, operands, product, [*call.scales, "alpha"])

        return Reference(f"cublaslt{rank}_{self._name(algorithm)}", enqueue)

    def _name(self, algorithm: _Algorithm) -> str:
        """Its attributes, as the numbers of cublasLt.h."""
        words = []
        for name, attribute in _CONFIG.items():
            value = ctypes.c_uint16() if name in _CLUSTER_IS_16_BIT else ctypes.c_uint32()
            written = ctypes.c_size_t()
            self._call(
                "cublasLtMatmulAlgoConfigGetAttribute",
                ctypes.byref(algorithm),
                attribute,
                ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(value)),
                ctypes.byref(written),
            )
            words.append(f"{name}{value.value}")
        return "_".join(words)

    def _layout(self, dtype: int, problem: Problem, matrix: str, pitch: Pitch) -> ctypes.c_void_p:
        """The stored rows of a matrix (`a`, `b`, `d`), which are columns to cuBLAS, in all products of a batch."""
        rows, columns = problem.stored(matrix)
        layout = ctypes.c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            ctypes.byref(layout),
            dtype,
            ctypes.c_uint64(columns),
            ctypes.c_uint64(rows),
            ctypes.c_int64(pitch.row),
        )
        if problem.batched:
            self._set_layout(layout, _LAYOUT_BATCH_COUNT, ctypes.c_int32(problem.batch))
            self._set_layout(layout, _LAYOUT_STRIDED_BATCH_OFFSET, ctypes.c_int64(pitch.batch))
        return layout

    def _set_layout(self, layout: ctypes.c_void_p, attribute: int, value: ctypes.c_int32 | ctypes.c_int64) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call("cublasLtMatrixLayoutSetAttribute", layout, attribute, ctypes.byref(value), size)

    def _set_operation(self, description: ctypes.c_void_p, attribute: int, transposed: bool) -> None:
        self._set(description, attribute, ctypes.c_int32(_OP_T if transposed else _OP_N))

    def _set_scales(self, description: ctypes.c_void_p, a: Any, b: Any) -> None:
        """Scales of A and B, which are cuBLAS's second operand and its first."""
        self._set(description, _DESC_A_SCALE_POINTER, ctypes.c_void_p(b.data_ptr()))
        self._set(description, _DESC_B_SCALE_POINTER, ctypes.c_void_p(a.data_ptr()))

    def _set(self, description: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self._call(
            "cublasLtMatmulDescSetAttribute",
            description,
            attribute,
            ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")


def _loaded_library() -> str:
    """The path of the cublasLt that torch has loaded, so that both references are of one version."""
    torch()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "libcublasLt.so" in path:
            return path
    raise RuntimeError("torch has loaded no libcublasLt")
