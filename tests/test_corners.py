"""The space holds no kernel that the audit refuses: drawn where that is likeliest."""

from __future__ import annotations

import pytest
from corners import CORNERS, in_corner
from tileseek.codegen import CompilePool


@pytest.mark.parametrize("corner", CORNERS)
def test_audit_accepts(corner: str) -> None:
    problem, schedules = in_corner(corner, 2)
    with CompilePool(1) as pool:
        kernels = pool.compile_many([(problem, schedule) for schedule in schedules])
    assert not {s.name: kernel.reason for s, kernel in zip(schedules, kernels, strict=True) if kernel.status != "ok"}
