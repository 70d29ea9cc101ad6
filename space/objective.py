"""What is tuned for."""

from __future__ import annotations

FOR_TIME = "time"
FOR_ENERGY = "energy"
FOR_EDP = "edp"
"""Energy-delay product: energy of a call times its time."""

OBJECTIVES = (FOR_TIME, FOR_ENERGY, FOR_EDP)
