"""compute-sanitizer finds no access outside what belongs to a kernel, over a sample of kernels of each kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tileseek.codegen.source import ENTRY

SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path(SANITIZER).exists(), reason="no compute-sanitizer here"),
]

KINDS = [
    ("bf16", "nt", "none"),
    ("fp16", "tt", "bias+aux+gelu+residual"),
    ("bf16", "nn", "alpha+silu+gated"),
    ("fp8", "nt", "scale_m+scale_n+bias"),
]

PLANTED = f"""
import torch
from cuda.bindings import driver
from tileseek.codegen.nvrtc import compile_source
from tileseek.measure.driver import Module
torch.zeros(1, device="cuda")
text = 'extern "C" __global__ void {ENTRY}() {{ *(volatile int*)16 = 1; }}'
kernel = Module(compile_source(text).cubin).function("{ENTRY}")
driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
torch.cuda.synchronize()
"""


def memcheck(*program: str) -> str:
    """What memcheck says of this project's kernels in a Python program."""
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    command = [SANITIZER, *options, "--kernel-name", f"kernel_substring={ENTRY}", sys.executable, *program]
    # Every tensor in an allocation of its own: within a pool any address is valid.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    return result.stdout + result.stderr


def test_memcheck_finds_a_planted_write() -> None:
    words = memcheck("-c", PLANTED)
    assert "Invalid __global__ write" in words, words


@pytest.mark.parametrize(("dtype", "layout", "epilogue"), KINDS)
def test_memcheck_is_silent(dtype: str, layout: str, epilogue: str) -> None:
    words = memcheck(str(Path(__file__).parent / "shapes.py"), dtype, layout, epilogue, "memcheck")
    launches = re.search(r"(\d+) launches", words)
    assert launches and int(launches[1]) >= 12, words
    assert "ERROR SUMMARY: 0 errors" in words, words
    assert "wrong elements" not in words, words
