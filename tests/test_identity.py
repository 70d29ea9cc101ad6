"""Keys: whatever differs has another key, and what does not matter changes none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from journals import ENV, FIRST, SECOND, THIRD, contents, measured
from tileseek.codegen import generate
from tileseek.codegen.cache import content_key
from tileseek.heuristics.report import report
from tileseek.heuristics.table import build_table, stale
from tileseek.measure.policy import SCREEN
from tileseek.measure.supervisor import Measurer
from tileseek.space import ALL_VALUES, H200, BadInput, Problem, Schedule, sample, violations
from tileseek.space.generations import same_kernel

P = Problem(2048, 4096, 4096)

OTHERS: dict[str, Any] = {
    "m": [16, 512],
    "n": [8, 512],
    "k": [8, 512],
    "batch": [2, 12],
    "dtype": ["fp16", "fp8", "fp8_e5m2"],
    "layout": ["nn", "tn", "tt"],
    "out_dtype": ["fp16", "fp32", "fp8"],
    "epilogue": ["gelu", "bias", "bias+relu+residual", "bias_m+gelu_tanh"],
    "overlap": ["launch", "weights"],
    "broadcast": ["a", "b"],
    "a_align": [2, 8],
    "b_align": [2, 8],
    "d_align": [2, 8],
    "accumulate": ["promoted"],
    "deterministic": [True],
}
"""Other values of each field than those of P."""


def single_changes(problem: Problem) -> Iterator[Problem]:
    for field in fields(Problem):
        for value in OTHERS[field.name]:
            try:
                yield replace(problem, **{field.name: value})
            except BadInput:
                continue  # not every output goes with every operand


def test_problems_that_differ_in_one_field_never_share_a_key() -> None:
    assert {field.name for field in fields(Problem)} <= OTHERS.keys(), "a new field needs other values here"
    batched = replace(P, batch=4)
    problems = [P, *single_changes(P), batched, *single_changes(batched)]
    problems += [other for problem in list(problems) for other in single_changes(problem)]
    distinct = set(problems)
    assert len({problem.key for problem in distinct}) == len(distinct)
    assert len({repr(problem.to_json()) for problem in distinct}) == len(distinct)
    assert all(Problem.from_json(problem.to_json()) == problem for problem in distinct)


def test_schedules_that_differ_in_one_field_never_share_a_key() -> None:
    rng = random.Random(0)
    problems = [P, Problem(16, 6144, 4096), replace(P, epilogue="bias+gelu+residual"), replace(P, overlap="weights")]
    pairs = 0
    changed = set()
    for problem in problems:
        for _ in range(60):
            one = sample(problem, H200, rng)
            for field in fields(Schedule):
                for value in ALL_VALUES.get(field.name, ()):
                    if value == getattr(one, field.name):
                        continue
                    other = replace(one, **{field.name: value})
                    if not violations(problem, other, H200):
                        assert one.name != other.name
                        assert one.to_json() != other.to_json()
                        pairs += 1
                        changed.add(field.name)
    assert pairs > 1000
    assert len(changed) >= 12


def env_key(env: dict[str, Any]) -> str:
    measurer = object.__new__(Measurer)
    measurer._env = env
    return measurer.env_key


def test_every_fact_of_the_environment_is_in_its_key_but_which_card_it_was() -> None:
    env = {**ENV, "uuid": "GPU-1", "driver": "580.1", "torch": "2.11", "cublaslt": "13.1", "power_limit_w": 700.0}
    for name in env:
        assert (env_key({**env, name: "another"}) == env_key(env)) == (name == "uuid")


def test_every_field_of_a_policy_that_a_time_can_depend_on_is_in_its_key() -> None:
    for name, value in asdict(SCREEN).items():
        other = {"regime": "burst", "objective": "energy"}.get(name) or (f"{value}x" if name == "name" else value + 1)
        same = replace(SCREEN, **{name: other}).key == SCREEN.key
        assert same == (name == "check_repeats"), name


def test_a_kernel_is_kept_under_its_source_options_and_compiler() -> None:
    parts = ("source", "--options", "nvrtc 13.0.88")
    assert (
        len({content_key(*parts), *(content_key(*parts[:i], parts[i] + "x", *parts[i + 1 :]) for i in range(3))}) == 4
    )
    assert content_key("ab", "c") != content_key("a", "bc")


@pytest.mark.parametrize(
    ("fact", "old"), [("generator", "0"), ("compiler", "nvrtc 12.9.1")], ids=["generator", "compiler"]
)
def test_times_of_another_generator_or_compiler_are_stale_and_told(fact: str, old: str) -> None:
    journal = contents([measured(P, FIRST, 9.0, 1.0), measured(P, SECOND, 5.0, 2.0, env="old")], old={**ENV, fact: old})
    table = build_table(journal, H200)
    assert table.entries[0].schedule == FIRST, "the stale time does not count"
    assert stale(journal, H200, (table.generator, table.compiler)).total() == 1
    assert f"stale, left out: 1 measured with generator {({**ENV, fact: old})['generator']}" in report(journal, table)


def test_kernels_that_a_new_generator_left_alone_keep_their_times() -> None:
    shared, alone = FIRST, SECOND
    assert (shared.multicast, alone.multicast) == (True, False)
    assert same_kernel(P, alone, "2", "3")
    assert same_kernel(P, shared, "3", "3")
    odd, copying = replace(P, k=P.k + 1), replace(alone, load="copy")
    assert same_kernel(odd, copying, "2", "3")
    assert not same_kernel(odd, copying, "3", "4")
    assert "generator 4" in generate(odd, copying).text
    assert "generator 3" in generate(P, alone).text, "the text of a kernel that stays is the same"
    for schedule, made_with, version in ((shared, "2", "3"), (alone, "3", "2"), (alone, "x", "3"), (alone, "3", "99")):
        assert not same_kernel(P, schedule, made_with, version)
    old, new = {**ENV, "generator": "2"}, {**ENV, "generator": "3"}
    measures = [measured(P, shared, 5.0, 2.0, env="old"), measured(P, alone, 9.0, 1.0, env="old")]
    journal = contents([*measures, measured(P, THIRD, 10.0, 0.9, env="new")], old=old, new=new)
    assert build_table(journal, H200).entries[0].schedule == alone
    assert stale(journal, H200, ("3", ENV["compiler"])) == {("2", ENV["compiler"]): 1}


def test_a_new_dimension_of_the_schedule_makes_no_time_stale() -> None:
    """Journals and tables of a version without a field read as its default, under the same name."""
    for field in fields(Schedule):
        if field.name in ("arrangement", "consumers", "tile_m", "tile_n", "tile_k", "stages"):
            continue
        one = replace(FIRST, **{field.name: field.default})
        old = {name: value for name, value in one.to_json().items() if name != field.name}
        assert Schedule.from_json(old) == one
        assert Schedule.from_json(old).name == one.name
