"""Generated code on the CPU: C++ made of a kernel's text, compiled and loaded."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest


def library(source: str, folder: Path, name: str) -> ctypes.CDLL:
    """The shared library of a C++ source, `name`.so in `folder`; skips the test where there is no compiler."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = folder / f"{name}.cpp"
    path.write_text(source)
    built = path.with_suffix(".so")
    command = [compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", str(built), str(path)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))
