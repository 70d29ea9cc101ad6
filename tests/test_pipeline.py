"""The kernel's pipeline neither hangs nor reads wrong data in any order of events; planted mistakes are found."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from pipeline import BUGS, Hazard, Machine, Pipeline, explore, hazards, random_walk
from tileseek.space import COOPERATIVE, PINGPONG

ARRANGEMENTS = ((COOPERATIVE, 1), (COOPERATIVE, 2), (COOPERATIVE, 3), (PINGPONG, 2))
CLUSTERS = ((2, 1), (1, 2), (2, 2), (4, 1))


@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
@pytest.mark.parametrize("in_flight", (0, 1))
def test_random_orders(arrangement: str, consumers: int, in_flight: int) -> None:
    for stages, k_blocks, tiles in itertools.product((2, 3, 5), (1, 2, 4, 7), (1, 2, 5)):
        p = Pipeline(arrangement, consumers, stages, in_flight, k_blocks, tiles)
        for seed in range(2):
            random_walk(p, seed)


@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_random_orders_in_clusters(arrangement: str, consumers: int, cluster: tuple[int, int]) -> None:
    for in_flight, (stages, k_blocks, tiles) in itertools.product((0, 1), ((2, 1, 3), (2, 5, 2), (3, 2, 3))):
        for seed in range(2):
            random_walk(Pipeline(arrangement, consumers, stages, in_flight, k_blocks, tiles, *cluster), seed)


@pytest.mark.parametrize("in_flight", (0, 1))
@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
def test_every_order_of_small_pipelines(arrangement: str, consumers: int, in_flight: int) -> None:
    for k_blocks, tiles in ((1, 2), (2, 1)) if consumers == 3 else ((1, 3), (2, 3), (3, 3)):
        states = explore(Pipeline(arrangement, consumers, 2, in_flight, k_blocks, tiles), limit=20_000)
        assert states > 30


def test_every_order_of_a_small_cluster() -> None:
    assert explore(Pipeline(COOPERATIVE, 1, 2, 1, k_blocks=3, tiles=1, cluster_m=2), limit=50_000) > 10_000


def _where_it_shows(bug: str) -> list[Pipeline]:
    """Pipelines in which a mistake has consequences."""
    cooperative = Pipeline(COOPERATIVE, 2, 3, 1, k_blocks=5, tiles=3)
    pingpong = Pipeline(PINGPONG, 2, 3, 1, k_blocks=7, tiles=4)
    draining = Pipeline(COOPERATIVE, 2, 2, 0, k_blocks=5, tiles=2)
    cluster = Pipeline(COOPERATIVE, 2, 2, 1, k_blocks=3, tiles=3, cluster_m=2, cluster_n=2)
    order = ("no skip over the other's k-blocks", "no order of main loops", "no first turn")
    if bug in order:
        return [pingpong, replace(pingpong, in_flight=0), replace(pingpong, cluster_n=2)]
    if bug in ("peers not told", "cluster left early"):
        return [cluster, replace(cluster, in_flight=0), replace(pingpong, cluster_m=2)]
    if bug == "one arrival too few":
        return [cooperative, cluster]  # of a single arrival none would be left
    if bug in ("no wait before the epilogue", "last stage not released"):
        return [cooperative, pingpong, cluster]
    return [cooperative, pingpong, cluster, draining]


@pytest.mark.parametrize("bug", BUGS)
def test_planted_mistake_is_found(bug: str) -> None:
    for p in _where_it_shows(bug):
        assert hazards(p, range(8)) == [], "the pipeline is sound without the mistake"
        assert hazards(replace(p, bug=bug), range(12)), f"{bug} goes unnoticed in {p}"


@pytest.mark.parametrize(
    ("bug", "words"),
    (
        ("release before the wait", "overwritten while wgmmas read it"),
        ("stage reset for every tile", "in place of"),
        ("one arrival too many", "deadlock"),
        ("no first turn", "deadlock"),
        ("no wait before the epilogue", "accumulators of wgmmas in flight"),
        ("cluster left early", "has exited"),
    ),
)
def test_mistake_has_its_consequence(bug: str, words: str) -> None:
    p = replace(_where_it_shows(bug)[0], bug=bug)
    assert any(words in hazard for hazard in hazards(p, range(20)))


def test_exploring_finds_what_few_orders_show() -> None:
    """A release before the wait is harmless in most orders; visiting all of them finds the one where it is not."""
    with pytest.raises(Hazard, match="overwritten"):
        explore(Pipeline(stages=2, k_blocks=3, bug="release before the wait"), limit=20_000)


def test_states_with_one_key_are_one_state() -> None:
    """Events that do not touch each other lead to one state in both orders, and a copy is independent."""
    start = Machine(Pipeline(COOPERATIVE, 1, 2, k_blocks=2, cluster_m=2))
    first, second = start.events()[:2]
    ends = []
    for order in ((first, second), (second, first)):
        machine = start.copy()
        for event in order:
            machine.apply(event)
        ends.append(machine.key())
    assert ends[0] == ends[1] != start.key()
