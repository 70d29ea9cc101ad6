"""What is fused, on the GPU: right to the bit on integers for odd shapes, within the tolerance on normal data."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tileseek.codegen import CompilePool
from tileseek.measure.policy import SCREEN
from tileseek.measure.results import Candidate
from tileseek.measure.supervisor import Measurer
from tileseek.space import Problem, sample

pytestmark = pytest.mark.gpu

VERIFY = replace(SCREEN, name="verify", rounds=3, slot_ms=0.1, limited_slot_ms=0.1, spacer_ms=0.1, check_seeds=2)

KINDS = [
    ("bf16", "nt", "alpha+bias+relu+residual+beta"),
    ("fp16", "nn", "alpha+bias_m+residual+beta"),
    ("bf16", "nt", "bias+aux+relu+residual"),
    ("fp16", "tt", "aux+relu"),
    ("bf16", "nn", "alpha+gelu"),
    ("fp16", "nt", "silu+residual"),
    ("bf16", "nt", "gated"),
    ("bf16", "nn", "bias+relu+gated"),
    ("fp16", "nt", "alpha+bias+aux+relu+gated+residual+beta"),
    ("bf16", "tn", "bias_m+aux+gated+residual"),
    ("bf16", "nt", "bias+aux+gelu+residual"),
    ("fp16", "nt", "silu+gated"),
    ("bf16", "tt", "alpha+gelu_tanh+gated+residual+beta"),
    ("fp8", "nt", "scale_m+scale_n+bias"),
    ("fp8_e5m2", "nt", "scale+alpha+relu+residual"),
]

PLAIN = [
    *((dtype, layout, "none") for dtype in ("bf16", "fp16") for layout in ("nt", "nn", "tn", "tt")),
    *((dtype, "nt", "none") for dtype in ("fp8", "fp8_e5m2")),
]


@pytest.mark.parametrize(("dtype", "layout", "epilogue"), [*KINDS, *PLAIN])
def test_small_odd_shapes_are_right(dtype: str, layout: str, epilogue: str) -> None:
    program = Path(__file__).parent / "shapes.py"
    command = [sys.executable, str(program), dtype, layout, epilogue, "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout + result.stderr


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer() as instrument:
        yield instrument


@pytest.mark.parametrize(
    "problem",
    [
        *(Problem(520, 1552, 1040, dtype=dtype, layout=layout, epilogue=epilogue) for dtype, layout, epilogue in KINDS),
        Problem(520, 1552, 1040, out_dtype="fp32", epilogue="aux+gelu"),
        Problem(520, 1552, 1040, dtype="fp8", out_dtype="fp8", epilogue="scale+silu"),
    ],
    ids=lambda problem: problem.key,
)
def test_random_schedules_are_right(measurer: Measurer, problem: Problem) -> None:
    """On normal data, and on the odd-shaped companions of each schedule."""
    rng = random.Random(problem.key)
    schedules = list(dict.fromkeys(sample(problem, measurer.device, rng) for _ in range(24)))
    with CompilePool() as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    candidates = [
        Candidate.of(s, kernel) for s, kernel in zip(schedules, kernels, strict=True) if kernel.status == "ok"
    ]
    assert len(candidates) >= 0.9 * len(schedules)
    results = measurer.measure(problem, candidates, VERIFY)
    assert {result.schedule.name: (result.status, result.reason) for result in results if not result.correct} == {}
