"""NVRTC: CUDA source text -> cubin and compiler log, in this process. No GPU is needed or touched."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from ..space import BadInput

ARCHITECTURE = "sm_90a"

OPTIONS = (f"--gpu-architecture={ARCHITECTURE}", "-std=c++17", "--ptxas-options=-v", "--no-cache")
"""`-v` puts registers and spills into the log, which the audit reads; our own cache replaces NVRTC's."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What NVRTC made of a source. `cubin` is empty when it refused the source; the log then says why."""

    cubin: bytes
    log: str


@functools.cache
def compiler_version() -> str:
    """The compiler in a form that cache keys and journals carry, such as `nvrtc 13.0.88`.

    Raises:
        BadInput: NVRTC or its Python bindings are not installed.
    """
    # The library reports major and minor only; the full version is what it stamps into its output.
    stamp = re.search(rb"release [\d.]+, V([\d.]+)", compile_source('extern "C" __global__ void f() {}').cubin)
    if stamp is None:
        raise BadInput(f"NVRTC cannot compile for {ARCHITECTURE}: valid is NVRTC 12.9 or newer")
    return f"nvrtc {stamp[1].decode()}"


def compile_source(text: str) -> Compilation:
    """Compile one translation unit with `OPTIONS`.

    Raises:
        BadInput: NVRTC is not installed.
        RuntimeError: NVRTC failed for a reason other than the source (out of memory, internal error).
    """
    nvrtc = _nvrtc()
    program = _call(nvrtc.nvrtcCreateProgram, text.encode(), b"kernel.cu", 0, [], [])
    try:
        options = [option.encode() for option in OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status not in (nvrtc.nvrtcResult.NVRTC_SUCCESS, nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION):
            raise RuntimeError(f"NVRTC: {status.name}: {_log(program)}")
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            return Compilation(b"", _log(program))
        cubin = bytearray(_call(nvrtc.nvrtcGetCUBINSize, program))
        _call(nvrtc.nvrtcGetCUBIN, program, cubin)
        return Compilation(bytes(cubin), _log(program))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: Any) -> str:
    nvrtc = _nvrtc()
    log = bytearray(_call(nvrtc.nvrtcGetProgramLogSize, program))
    _call(nvrtc.nvrtcGetProgramLog, program, log)
    return log.rstrip(b"\0").decode(errors="replace").strip()


@functools.cache
def _nvrtc() -> Any:
    """The bindings, imported on first use: a query must work where they are not installed."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError) as error:
        raise BadInput(f"NVRTC cannot be loaded ({error}): valid is an installation of tileseek[search]") from error
    return nvrtc


def _call(function: Any, *arguments: Any) -> Any:
    """Call one binding; its status becomes an exception, its results a value or a tuple."""
    status, *results = function(*arguments)
    if status != _nvrtc().nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {status.name}")
    return results[0] if len(results) == 1 else tuple(results)
