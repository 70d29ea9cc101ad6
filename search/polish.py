"""The neighbourhood of what is best so far."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..space import Schedule
from .spaces import SearchSpace

WALKS = 8
"""Other walks over the tiles tried for each of the best: they compile nothing."""


def refinements(space: SearchSpace, best: Sequence[Schedule], rng: random.Random) -> list[Schedule]:
    """Neighbours of the winner, and other walks over the tiles for each of the best, in a random order."""
    found: dict[Schedule, None] = {}
    for schedule in best:
        walks = space.walks(schedule)
        found.update(dict.fromkeys(rng.sample(walks, min(WALKS, len(walks)))))
    found.update(dict.fromkeys(space.neighbours(best[0]) if best else ()))
    order = list(found)
    rng.shuffle(order)
    return order
