"""The kernel's pipeline neither hangs nor reads wrong data in any order of events; planted mistakes are found."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from pipeline import BUGS, Hazard, Machine, Pipeline, explore, hazards, random_walk
from tileseek.codegen.copying import lag
from tileseek.space import COOPERATIVE, PINGPONG, Schedule
from tileseek.space.rules import CLUSTERS, MULTICAST_KINDS

ARRANGEMENTS = ((COOPERATIVE, 1), (COOPERATIVE, 2), (COOPERATIVE, 3), (PINGPONG, 2))
SHARED = [cluster for cluster in CLUSTERS if cluster != (1, 1)]


@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
@pytest.mark.parametrize("in_flight", (0, 1))
def test_random_orders(arrangement: str, consumers: int, in_flight: int) -> None:
    for stages, k_blocks, tiles in itertools.product((2, 3, 5), (1, 2, 4, 7), (1, 2, 5)):
        p = Pipeline(arrangement, consumers, stages, in_flight, k_blocks, tiles)
        for seed in range(2):
            random_walk(p, seed)


@pytest.mark.parametrize("kind", MULTICAST_KINDS)
@pytest.mark.parametrize("cluster", SHARED, ids=str)
def test_random_orders_in_clusters(cluster: tuple[int, int], kind: str) -> None:
    for (arrangement, consumers), in_flight in itertools.product(ARRANGEMENTS, (0, 1)):
        for seed, (stages, k_blocks, tiles) in enumerate(((2, 1, 3), (2, 5, 2), (3, 2, 3))):
            random_walk(Pipeline(arrangement, consumers, stages, in_flight, k_blocks, tiles, *cluster, kind), seed)


@pytest.mark.parametrize("in_flight", (0, 1))
@pytest.mark.parametrize("consumers", (1, 2))
def test_random_orders_of_unequal_shares_of_k(consumers: int, in_flight: int) -> None:
    """As with split-K and stream-K: every unit of work has k-blocks of its own number."""
    for stages, shares in itertools.product((2, 3), ((3, 1, 4), (1, 5), (2, 2, 1, 7))):
        for seed in range(3):
            random_walk(Pipeline(COOPERATIVE, consumers, stages, in_flight, shares, len(shares)), seed)


@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
def test_random_orders_of_the_epilogue(arrangement: str, consumers: int) -> None:
    for pieces, chunks, residuals in itertools.product((1, 3, 4), (1, 2, 4), (0, 1, 2)):
        p = Pipeline(arrangement, consumers, 2, 1, 2, 3, pieces=pieces, chunks=chunks, residuals=residuals)
        for seed in range(2):
            random_walk(p, seed)
    random_walk(replace(p, cluster_m=2, cluster_n=2, kind="leader"), 0)


@pytest.mark.parametrize("in_flight", (0, 1))
@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
def test_every_order_of_small_pipelines(arrangement: str, consumers: int, in_flight: int) -> None:
    for k_blocks, tiles in ((1, 2), (2, 1)) if consumers == 3 else ((1, 3), (2, 3), (3, 3)):
        states = explore(Pipeline(arrangement, consumers, 2, in_flight, k_blocks, tiles), limit=20_000)
        assert states > 30


@pytest.mark.parametrize("kind", MULTICAST_KINDS)
def test_every_order_of_a_small_cluster(kind: str) -> None:
    for alone in (0, 1):
        p = Pipeline(COOPERATIVE, 1, 2, 1, 3, 1, cluster_m=2, kind=kind, alone=alone)
        assert explore(p, limit=50_000) > 2_000


COLUMNS = (0, 0, 0, 1, 1, 2)


@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
@pytest.mark.parametrize("in_flight", (0, 1))
def test_an_operand_that_is_held_along_columns_of_tiles(arrangement: str, consumers: int, in_flight: int) -> None:
    for stages, k_blocks in ((2, 2), (2, 5), (3, 4), (5, 5)):
        p = Pipeline(arrangement, consumers, stages, in_flight, k_blocks, len(COLUMNS), columns=COLUMNS)
        for seed in range(4):
            random_walk(p, seed)
        assert any(hazards(replace(p, stages=k_blocks + 2), range(30))), "the rules see to as many k-blocks as stages"
    if consumers < 3:
        explore(Pipeline(arrangement, consumers, 2, in_flight, 2, 4, columns=(0, 0, 1, 2)), limit=60_000)


@pytest.mark.parametrize(("arrangement", "consumers"), ARRANGEMENTS)
@pytest.mark.parametrize("in_flight", (0, 1))
def test_copies_that_run_ahead(arrangement: str, consumers: int, in_flight: int) -> None:
    """A stage is handed over when later ones are under way: as many as never wait for themselves."""
    for stages, k_blocks, tiles in itertools.product((2, 3, 5), (1, 2, 4, 7), (1, 2, 5)):
        schedule = Schedule(arrangement, consumers, 64 * consumers, 64, 64, stages, mma_in_flight=in_flight)
        p = Pipeline(arrangement, consumers, stages, in_flight, k_blocks, tiles, lag=lag(schedule))
        for seed in range(2):
            random_walk(p, seed)


def test_copies_in_every_order() -> None:
    for in_flight, stages, k_blocks in itertools.product((0, 1), (2, 3), (1, 3)):
        schedule = Schedule(COOPERATIVE, 1, 64, 64, 64, stages, mma_in_flight=in_flight)
        explore(Pipeline(COOPERATIVE, 1, stages, in_flight, k_blocks, tiles=2, lag=lag(schedule)), limit=20_000)


@pytest.mark.parametrize("in_flight", (0, 1))
def test_copies_that_run_too_far_ahead_wait_for_themselves(in_flight: int) -> None:
    p = Pipeline(COOPERATIVE, 1, 3, in_flight, k_blocks=7, tiles=2, lag=3 - in_flight)
    assert any("deadlock" in hazard for hazard in hazards(p, range(4)))


@pytest.mark.parametrize("chunks", (1, 2))
def test_every_order_of_a_small_epilogue(chunks: int) -> None:
    p = Pipeline(COOPERATIVE, 1, 2, 0, k_blocks=1, tiles=2, pieces=2, chunks=chunks, residuals=2)
    assert explore(p, limit=50_000) > 1_000


COOP = Pipeline(COOPERATIVE, 2, 3, 1, k_blocks=5, tiles=3)
DRAINING = Pipeline(COOPERATIVE, 2, 2, 0, k_blocks=5, tiles=2)
PING = Pipeline(PINGPONG, 2, 3, 1, k_blocks=7, tiles=4)
ODD_PING = replace(PING, tiles=3)
CLUSTER = Pipeline(COOPERATIVE, 2, 2, 1, k_blocks=3, tiles=3, cluster_m=2, cluster_n=2)
LEADER = replace(CLUSTER, kind="leader")
ROTATE = replace(CLUSTER, kind="rotate")
ALONE = [replace(p, alone=n, stages=3) for p in (CLUSTER, LEADER, ROTATE) for n in (1, 2, 4)]
SHARES = Pipeline(COOPERATIVE, 2, 3, 1, k_blocks=(4, 1, 6), tiles=3)
STORES = Pipeline(COOPERATIVE, 2, 3, 1, k_blocks=1, tiles=3, pieces=4, chunks=2)
RESIDUAL = replace(STORES, residuals=2)

SHOWS_IN: dict[str, list[Pipeline]] = {
    "current stage released in flight": [COOP, PING, CLUSTER],
    "stage from an equal K of every tile": [SHARES],
    "barriers initialised for every tile": [COOP, PING, CLUSTER],
    "one arrival too few": [COOP, CLUSTER],  # of a single arrival none would be left
    "both consumers of ping-pong counted": [PING, replace(PING, cluster_m=2)],
    "no skip over the other's k-blocks": [PING, replace(PING, in_flight=0), replace(PING, cluster_n=2)],
    "no order of main loops": [PING, replace(PING, in_flight=0), replace(PING, cluster_n=2)],
    "no first turn": [PING, replace(PING, in_flight=0), replace(PING, cluster_n=2)],
    "epilogue synchronises all consumers": [ODD_PING],
    "no wait before the epilogue": [COOP, PING, CLUSTER],
    "last stage not released": [COOP, PING, CLUSTER],
    "peers not told": [CLUSTER, LEADER, ROTATE, *ALONE, replace(CLUSTER, in_flight=0), replace(PING, cluster_m=2)],
    "no cluster barrier before the first load": [CLUSTER, LEADER, ROTATE],
    "stages shared before the cluster has met": [*ALONE, replace(PING, cluster_m=2, alone=2)],
    "cluster left early": [CLUSTER, *ALONE, replace(CLUSTER, in_flight=0), replace(PING, cluster_m=2)],
    "cluster left at a barrier": [CLUSTER, LEADER, ROTATE, replace(PING, cluster_m=2)],
    "CTA at the edge skips its tile": [CLUSTER, LEADER, ROTATE, replace(PING, cluster_n=2)],
    "chunk written without a wait": [STORES, RESIDUAL],
    "wait for one store too few": [STORES, RESIDUAL],
    "left with stores in flight": [STORES, RESIDUAL],
    "residual not handed back": [RESIDUAL, replace(RESIDUAL, residuals=1)],
    "residual handed back before it is read": [RESIDUAL, replace(RESIDUAL, residuals=1)],
}
"""Pipelines in which a mistake has consequences; all others show in any."""


def where(bug: str) -> list[Pipeline]:
    return SHOWS_IN.get(bug, [COOP, PING, CLUSTER, LEADER, ROTATE, DRAINING])


@pytest.mark.parametrize("bug", BUGS)
def test_planted_mistake_is_found(bug: str) -> None:
    for p in where(bug):
        assert not any(hazards(p, range(3))), "the pipeline is sound without the mistake"
        assert any(hazards(replace(p, bug=bug), range(20))), f"{bug} goes unnoticed in {p}"


@pytest.mark.parametrize(
    ("bug", "words"),
    (
        ("release before the wait", "overwritten while wgmmas read it"),
        ("stage reset for every tile", "in place of"),
        ("one arrival too many", "deadlock"),
        ("no first turn", "deadlock"),
        ("no wait before the epilogue", "accumulators of wgmmas in flight"),
        ("cluster left early", "has exited"),
        ("cluster left at a barrier", "has exited"),
        ("no cluster barrier before the first load", "not initialised"),
        ("stages shared before the cluster has met", "not initialised"),
        ("left with stores in flight", "has exited"),
        ("residual handed back before it is read", "of the residual is read in place of"),
    ),
)
def test_mistake_has_its_consequence(bug: str, words: str) -> None:
    p = replace(where(bug)[0], bug=bug)
    assert any(words in hazard for hazard in hazards(p, range(20)))


NVFUSER = {
    "operands overwritten under wgmmas (3561, 3863)": ("release before the wait", "overwritten while wgmmas read it"),
    "gap of two releases the present stage (3863)": (
        "current stage released in flight",
        "overwritten while wgmmas read it",
    ),
    "accumulators read before the wait (3843, 4312)": ("no wait before the epilogue", "accumulators"),
    "barriers made anew for every tile (4221)": ("barriers initialised for every tile", ""),
    "stage and phase from an equal K of all tiles (4221)": ("stage from an equal K of every tile", ""),
    "stage begins at 0 in every tile (4221)": ("stage reset for every tile", "in place of"),
    "phase lost between tiles (4221)": ("phase never flips", ""),
    "barriers used before they are made (4221)": ("barriers not awaited", "not initialised"),
    "load warp without the early-out (4249)": ("producer walks one tile too far", ""),
    "empty barrier counts both warpgroups in ping-pong (4460)": ("both consumers of ping-pong counted", "deadlock"),
    "nobody arrives for the first turn (4646)": ("no first turn", "deadlock"),
    "CTA-wide sync in a ping-pong epilogue (4646)": ("epilogue synchronises all consumers", "deadlock"),
    "all threads issue the loads (3294, 3814)": ("loads issued by two threads", ""),
    "expect_tx of one operand (4221)": ("bytes of one operand expected", ""),
    "no wait before the store's memory is written (3961)": ("chunk written without a wait", "while a store reads it"),
    "no wait for stores at all (5448)": ("left with stores in flight", "has exited"),
    "input of the epilogue overwritten (4069, 4271)": ("residual handed back before it is read", "of the residual"),
    "no cluster sync after the init (3689)": ("no cluster barrier before the first load", "not initialised"),
    "peers do not hand back (3689)": ("peers not told", ""),
    "CTA of a cluster without a tile (4341, 4405)": ("CTA at the edge skips its tile", "deadlock"),
}
"""Mistakes that nvFuser's history has (github.com/NVIDIA/Fuser, by number), as this model plants them.

Those that it cannot express are found elsewhere. By the audit: no fence or one for each wgmma (3139, 3680), fences and
waits that the compiler puts in, setmaxnreg ignored (3972), elections in the K loop, indices not uniform (2323).
By bit-exact companion shapes on the GPU: stmatrix on sizes that are no multiple of 16 (3963), a swizzle atom across
warp tiles (4771). By properties: tiles dropped by a padded swizzle (cutlass 3521). By rules: sizes beyond 2^31 (3595),
stages counted twice (4550). By the order of the source: one warpgroup still needs its barrier before the store (4151).
"""


@pytest.mark.parametrize("history", NVFUSER)
def test_mistake_of_nvfuser_is_found(history: str) -> None:
    bug, words = NVFUSER[history]
    p = replace(where(bug)[0], bug=bug)
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
