"""compute-sanitizer finds no access outside what belongs to a kernel, over a sample of kernels of each kind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tileseek.codegen.source import ENTRY

pytestmark = pytest.mark.gpu

SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"

KINDS = [
    ("bf16", "nt", "none"),
    ("fp16", "tt", "bias+aux+gelu+residual"),
    ("bf16", "nn", "alpha+silu+gated"),
    ("fp8", "nt", "scale_m+scale_n+bias"),
]


@pytest.mark.parametrize(("dtype", "layout", "epilogue"), KINDS)
def test_memcheck_is_silent(dtype: str, layout: str, epilogue: str) -> None:
    if not Path(SANITIZER).exists():
        pytest.skip("no compute-sanitizer here")
    program = [sys.executable, str(Path(__file__).parent / "shapes.py"), dtype, layout, epilogue, "memcheck"]
    ours = f"kernel_substring={ENTRY}"
    command = [
        SANITIZER,
        "--tool",
        "memcheck",
        "--kernel-name",
        ours,
        "--report-api-errors",
        "no",
        "--error-exitcode",
        "9",
        *program,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    words = result.stdout + result.stderr
    launches = re.search(r"(\d+) launches", words)
    assert launches and int(launches[1]) >= 12, words
    assert result.returncode == 0 and "ERROR SUMMARY: 0 errors" in words, words
