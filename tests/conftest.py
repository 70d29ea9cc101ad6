"""Tests marked `gpu` are deselected on machines without a Hopper GPU."""

from __future__ import annotations

import pytest
from tileseek.measure.gpus import HOPPER, gpus


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(gpu.cc == HOPPER for gpu in gpus()):
        return
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=on_gpu)
    items[:] = [item for item in items if item not in on_gpu]
