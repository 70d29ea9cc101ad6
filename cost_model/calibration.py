"""The constants of the analytic model, fitted to a journal: which measures are used, and what the fit gains."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..space import BadInput, Device
from .analytic import H200_CONSTANTS, Constants, Timed, estimate_us, fit
from .costs import Measured, by_problem

NEAR = 1.35
"""Time over the best of its problem within which a schedule is near: two in three of the measures that are used."""

CHECKED = 4
"""Measures that check a fit for each that it used."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted constants, and the median of |log(estimate / measured)| before and after, on measures that were not
    used."""

    constants: Constants
    before: float
    after: float
    used: int
    checked: int

    def to_json(self) -> dict[str, Any]:
        """Errors and counts, and every constant to four digits."""
        return {
            "used": self.used,
            "checked": self.checked,
            "median_abs_log_error": {"before": round(self.before, 4), "after": round(self.after, 4)},
            "constants": {name: float(f"{value:.4g}") for name, value in asdict(self.constants).items()},
        }


def calibrate(
    measures: Sequence[Measured],
    device: Device,
    per_problem: int = 45,
    start: Constants = H200_CONSTANTS,
    seed: int = 0,
) -> Calibration:
    """Fit the constants to at most `per_problem` measures of each problem, drawn at random, mostly near its best.

    Takes about 40 ms for each measure that is used.

    Raises:
        BadInput: fewer measures than there are constants.
    """
    rng = random.Random(seed)
    used: list[Timed] = []
    rest: list[Timed] = []
    for group in by_problem(m for m in measures if m.status == "correct" and m.median_us).values():
        limit = NEAR * min(m.median_us or math.inf for m in group)
        near = [m for m in group if (m.median_us or math.inf) < limit]
        far = [m for m in group if (m.median_us or math.inf) >= limit]
        for part, most in ((near, 2 * per_problem // 3), (far, per_problem // 3)):
            rng.shuffle(part)
            used += part[:most]
            rest += part[most : (1 + CHECKED) * most]
    if len(used) < len(asdict(start)):
        raise BadInput(f"{len(used)} measures to fit {len(asdict(start))} constants to: valid is a larger journal")
    constants = fit(used, device, start)
    checked = rest or used
    return Calibration(
        constants, _error(checked, device, start), _error(checked, device, constants), len(used), len(checked)
    )


def _error(measures: Sequence[Timed], device: Device, constants: Constants) -> float:
    return statistics.median(
        abs(math.log(estimate_us(m.problem, m.schedule, device, constants) / (m.median_us or math.nan)))
        for m in measures
    )
