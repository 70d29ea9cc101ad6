"""The search on journals nobody measured: it finds the best, spends what it may, and repeats nothing."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from journals import measured
from synthetic import journal, line, measure, true_us
from tileseek.cost_model.costs import costs
from tileseek.cost_model.predictor import Predictor
from tileseek.cost_model.ranker import train
from tileseek.heuristics.journal import Journal, JournalContents, Measure, measure_from_json, read_journal
from tileseek.measure.policy import SCREEN, Policy
from tileseek.search.budget import Budget, Meter, gain
from tileseek.search.known import known_before
from tileseek.search.polish import refinements
from tileseek.search.proposer import Proposer
from tileseek.search.race import race
from tileseek.search.runner import LiveRunner, OnMeasure, ReplayRunner
from tileseek.search.shootout import decide
from tileseek.search.spaces import ListedSpace, WholeSpace
from tileseek.search.study import StudyView
from tileseek.search.survey import survey
from tileseek.search.tuner import Options, Progress, Scorer, tune
from tileseek.space import ALL_VALUES, H200, BadInput, Problem, Schedule, violations

PROBLEMS = [Problem(16, 6144, 4096), Problem(2048, 4096, 4096), Problem(8192, 8192, 1024)]
QUICK = Options(batch=8)
COOP = Schedule.parse("coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma64x2")


@pytest.fixture(scope="module")
def contents() -> JournalContents:
    return journal(PROBLEMS, each=120)


class SyntheticRunner(ReplayRunner):
    """Measures anything valid, by a formula; `broken` schedules fail. Counts what it is asked."""

    def __init__(self, broken: object = None) -> None:
        super().__init__(JournalContents(), H200)
        self.asked: list[tuple[Problem, Schedule]] = []
        self.prepared: set[tuple[Problem, Schedule]] = set()
        self._fails = broken or (lambda problem, schedule: "")
        self.stop_after = math.inf

    def space(self, problem: Problem) -> WholeSpace:
        return WholeSpace(problem, H200)

    def prepare(self, problem: Problem, schedules: Sequence[Schedule]) -> None:
        self.prepared |= {(problem, s) for s in schedules}

    def measure(
        self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
    ) -> list[Measure]:
        found = []
        for s in schedules:
            assert not violations(problem, s, H200)
            if len(self.asked) >= self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((problem, s))
            self._clock += 0.1
            status = self._fails(problem, s)  # type: ignore[operator]
            raw = {**line(problem, s, true_us(problem, s), status or "correct"), "env": self.env_key}
            if status == "compile":
                raw["kind"] = "compile"
            found.append(measure_from_json({**raw, "policy": policy.key}))
            on_measure(found[-1])
        return found


def best_cost(contents: JournalContents, problem: Problem) -> float:
    return min(costs([m for m in contents.measures if m.problem == problem]).values())


def regret(contents: JournalContents, problem: Problem, winner: Measure) -> float:
    cost_of = costs([m for m in contents.measures if m.problem == problem])
    return cost_of[winner.schedule] / min(cost_of.values()) - 1


def test_finds_the_best_within_budget() -> None:
    """On nearly all of nine problems, so that it does not hang on one draw."""
    regrets = []
    for seed in range(3):
        contents = journal(PROBLEMS, each=120, seed=seed)
        summary = tune(PROBLEMS, ReplayRunner(contents, H200), Budget(measurements=96), options=QUICK)
        assert summary.measured == 96
        assert not summary.failed and not summary.interrupted
        regrets += [regret(contents, problem, summary.winners[problem]) for problem in PROBLEMS]
    assert sorted(regrets)[-2] < 0.01 and max(regrets) < 0.08


def test_beats_chance_with_few_measurements(contents: JournalContents) -> None:
    others = journal([Problem(32, 2112, 7168), Problem(4096, 6144, 4096), Problem(4096, 7168, 1024)], each=80, seed=9)
    ranker = train(others.measures, H200)
    ours, chance = [], []
    for problem in PROBLEMS:
        runner = ReplayRunner(contents, H200)
        summary = tune([problem], runner, Budget(measurements=8), ranker=ranker, options=QUICK)
        ours.append(regret(contents, problem, summary.winners[problem]))
        cost_of = costs([m for m in contents.measures if m.problem == problem])
        draws = [min(random.Random(i).sample(sorted(cost_of.values()), 8)) for i in range(20)]
        chance.append(sum(draws) / len(draws) / min(cost_of.values()) - 1)
    assert sum(ours) < 0.5 * sum(chance)
    assert sum(ours) / len(ours) < 0.05


def test_a_predictor_takes_the_place_of_training(contents: JournalContents, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a table carries of a ranker decides as it does, and what that has learned from is not learned again."""
    history = JournalContents(measures=[replace(m, env="") for m in contents.measures])
    trained = train(history.measures, H200)
    monkeypatch.setattr("tileseek.cost_model.ranker.train", lambda *_: pytest.fail("a ranker was given"))

    def asked(ranker: Scorer) -> list[tuple[Problem, Schedule]]:
        runner = SyntheticRunner()
        tune(PROBLEMS[:2], runner, Budget(measurements=48), history=history, ranker=ranker, options=QUICK)
        return runner.asked

    assert asked(Predictor.from_json(trained.to_json(), H200)) == asked(trained)


def test_same_seed_same_decisions(contents: JournalContents) -> None:
    def decisions(seed: int) -> list[str]:
        seen: list[str] = []
        tune(
            PROBLEMS,
            ReplayRunner(contents, H200),
            Budget(measurements=48),
            options=Options(seed=seed, batch=8),
            progress=lambda p: seen.append(f"{p.measure.problem.key} {p.measure.schedule}"),
        )
        return seen

    assert decisions(0) == decisions(0)
    assert decisions(0) != decisions(1)


def test_nothing_is_measured_twice_and_small_spaces_end_early(contents: JournalContents) -> None:
    problem = PROBLEMS[0]
    few = JournalContents(measures=[m for m in contents.measures if m.problem == problem][:40])
    seen: list[Schedule] = []
    summary = tune(
        [problem],
        ReplayRunner(few, H200),
        Budget(measurements=200),
        options=Options(finals=False),
        progress=lambda p: seen.append(p.measure.schedule),
    )
    assert summary.measured == len(seen) == len(set(seen)) == 40
    assert regret(few, problem, summary.winners[problem]) == 0


def test_resume_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    budget = Budget(measurements=40)
    options = Options(batch=8, finals=False)
    first = SyntheticRunner()
    first.stop_after = 19
    with Journal(path) as lines:
        summary = tune(PROBLEMS[:2], first, budget, journal=lines, options=options)
    assert summary.interrupted
    assert len(read_journal(path).measures) == 19
    second = SyntheticRunner()
    with Journal(path) as lines:
        summary = tune(PROBLEMS[:2], second, budget, journal=lines, options=options)
    assert (summary.known, summary.measured, summary.interrupted) == (19, 21, False)
    assert not set(first.asked) & set(second.asked)
    third = SyntheticRunner()
    with Journal(path) as lines:
        again = tune(PROBLEMS[:2], third, budget, journal=lines, options=options)
    assert third.asked == [] and again.winners.keys() == summary.winners.keys()
    assert {p: m.schedule for p, m in again.winners.items()} == {p: m.schedule for p, m in summary.winners.items()}
    assert read_journal(path).envs.keys() == {first.env_key}


def test_measures_of_another_environment_only_teach(contents: JournalContents, tmp_path: Path) -> None:
    runner = SyntheticRunner()
    summary = tune(PROBLEMS[:1], runner, Budget(measurements=8), history=contents, options=Options(finals=False))
    assert (summary.known, summary.measured) == (0, 8)


def test_kernels_that_a_new_generator_left_alone_are_not_measured_again() -> None:
    alone = Schedule("coop", 2, 128, 128, 64, 4)
    shared = replace(alone, cluster_m=2)
    measures = [measured(PROBLEMS[0], s, 9.0, env="older") for s in (alone, shared)]
    older = JournalContents(measures=measures, envs={"older": {"gpu": "x", "uuid": "1", "generator": "2"}})
    today = {"gpu": "x", "uuid": "2", "generator": "3"}
    for env, known in ((today, {PROBLEMS[0]: measures[:1]}), ({**today, "gpu": "y"}, {})):
        assert known_before(SimpleNamespace(env=env, env_key="today"), None, older)[1] == known


class FrugalRunner(SyntheticRunner):
    """Counts energy where the policy asks for it: the deeper the ring, the less."""

    def measure(
        self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
    ) -> list[Measure]:
        found = super().measure(problem, schedules, policy, lambda _: None)
        if policy.energy_ms:
            found = [measure_from_json({**m.raw, "ratio_energy": float(m.schedule.stages)}) for m in found]
        for m in found:
            on_measure(m)
        return found


def test_a_run_for_energy_chooses_by_it_and_keeps_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    runner = FrugalRunner()
    options = {objective: Options(batch=8, objective=objective) for objective in ("time", "energy", "edp")}
    with Journal(path) as lines:
        summary = tune(PROBLEMS[1:2], runner, Budget(measurements=32), journal=lines, options=options["energy"])
    deepest = max(s.stages for _, s in runner.asked)
    assert summary.winners[PROBLEMS[1]].schedule.stages == deepest
    assert {m.policy.partition(":")[0] for m in read_journal(path).measures} == {"energy"}
    with Journal(path) as lines:
        for_time = tune(PROBLEMS[1:2], runner, Budget(measurements=32), journal=lines, options=options["time"])
        again = tune(PROBLEMS[1:2], runner, Budget(measurements=32), journal=lines, options=options["energy"])
        edp = tune(PROBLEMS[1:2], runner, Budget(measurements=8), journal=lines, options=options["edp"])
    assert (for_time.known, for_time.measured) == (0, 32)
    assert (again.known, again.measured) == (32, 0)
    assert again.winners[PROBLEMS[1]].schedule.stages == deepest
    assert edp.known == 0 and edp.winners[PROBLEMS[1]].ratio_edp is not None


def test_a_final_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    budget = Budget(measurements=24)
    with Journal(path) as lines:
        tune(PROBLEMS[1:2], SyntheticRunner(), budget, journal=lines, options=QUICK)
    whole = path.read_text().splitlines(keepends=True)
    finals = [index for index, text in enumerate(whole) if '"policy":"final' in text]
    for kept, made in ((len(finals), 0), (len(finals) - 1, 3), (1, 3)):
        path.write_text("".join(whole[: finals[0] + kept]))
        runner = SyntheticRunner()
        with Journal(path) as lines:
            summary = tune(PROBLEMS[1:2], runner, budget, journal=lines, options=QUICK)
        assert summary.measured == 0, "of screening nothing is repeated"
        assert len([s for _, s in runner.asked]) >= made
        assert bool(runner.asked) == bool(made)


def test_interrupting_keeps_what_was_found() -> None:
    runner = SyntheticRunner()
    runner.stop_after = 13
    seen: list[Progress] = []
    summary = tune(PROBLEMS[:1], runner, Budget(measurements=100), options=QUICK, progress=seen.append)
    assert summary.interrupted
    assert len(seen) == 13
    assert summary.winners[PROBLEMS[0]].median_us == min(p.measure.median_us or math.inf for p in seen)


def test_a_problem_that_fails_at_first_is_not_starved() -> None:
    hard = PROBLEMS[1]
    failures: Counter[Problem] = Counter()

    def fails(problem: Problem, schedule: Schedule) -> str:
        failures[problem] += 1
        return "runtime" if problem == hard and failures[problem] <= 8 else ""

    runner = SyntheticRunner(fails)
    summary = tune(PROBLEMS, runner, Budget(measurements=72), options=Options(batch=8, finals=False))
    asked = Counter(problem for problem, _ in runner.asked)
    assert asked[hard] >= 16
    assert hard in summary.winners


def test_a_problem_that_always_fails_is_reported() -> None:
    runner = SyntheticRunner(lambda problem, schedule: "timeout" if problem == PROBLEMS[0] else "")
    summary = tune(PROBLEMS[:2], runner, Budget(measurements=32), options=QUICK)
    assert "timeout" in summary.failed[PROBLEMS[0]]
    assert PROBLEMS[1] in summary.winners


def test_a_search_in_which_nothing_works_stops_early() -> None:
    runner = SyntheticRunner(lambda problem, schedule: "runtime")
    summary = tune(PROBLEMS, runner, Budget(measurements=1000), options=Options(batch=8))
    assert not summary.winners
    assert 100 <= len(runner.asked) <= 116
    assert set(summary.failed) == set(PROBLEMS)


def test_kernels_that_do_not_compile_are_not_tried_again() -> None:
    runner = SyntheticRunner(lambda problem, schedule: "compile" if schedule.stages % 2 else "")
    tune(PROBLEMS[:1], runner, Budget(measurements=48), options=Options(batch=8, finals=False))
    order = [s for _, s in runner.asked]
    # A batch that compiles while the one before is measured may still hold the kernel.
    for index, s in enumerate(order):
        if s.stages % 2:
            assert s.kernel not in {later.kernel for later in order[index + 16 :]}


def test_budget_in_seconds_ends_in_time() -> None:
    runner = SyntheticRunner()
    finals: set[Problem] = set()

    def note(progress: Progress) -> None:
        if progress.phase == "finals":
            finals.add(progress.measure.problem)

    summary = tune(PROBLEMS, runner, Budget(seconds=8.0), options=QUICK, progress=note)
    assert 40 <= summary.measured <= 64
    assert finals == set(PROBLEMS)
    assert runner.now() <= 8.0 + 0.1 * 8


def test_the_next_batch_compiles_before_this_one_is_measured() -> None:
    runner = SyntheticRunner()
    ahead: list[int] = []

    def note(progress: Progress) -> None:
        # The end of a batch waits here until the next one is known; without overlap that would never be.
        deadline = time.monotonic() + 5
        while len(runner.asked) % 8 == 0 and len(runner.prepared) == len(runner.asked) < 40:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        ahead.append(len(runner.prepared) - len(runner.asked))

    tune(PROBLEMS, runner, Budget(measurements=40), options=Options(batch=8, finals=False), progress=note)
    assert ahead[7::8] == [8, 8, 8, 8, 0]


def test_kernels_of_one_problem_are_tried_on_its_siblings() -> None:
    twins = [Problem(4096, 4096, 4096), Problem(4096, 4096, 4608)]
    runner = SyntheticRunner()
    tune(twins, runner, Budget(measurements=64), options=Options(batch=8, finals=False))
    kernels = [{s.kernel for problem, s in runner.asked if problem == twin} for twin in twins]
    assert len(kernels[0] & kernels[1]) >= 8


def test_a_study_shows_what_the_journal_holds(tmp_path: Path) -> None:
    problem = PROBLEMS[0]
    url = f"sqlite:///{tmp_path / 'study.db'}"
    schedules = WholeSpace(problem, H200).draft(4, 0)
    known = [measure(problem, s, 10.0 + i) for i, s in enumerate(schedules[:2])]
    for _ in range(2):  # the second time it is written anew
        view = StudyView(url)
        view.begin([problem, PROBLEMS[1]], known)
        view.add(measure(problem, schedules[2], 9.0))
        view.add(measure(problem, schedules[3], 1.0, status="timeout"))
    assert set(optuna.get_all_study_names(url)) == {problem.key, PROBLEMS[1].key}
    study = optuna.load_study(study_name=problem.key, storage=url)
    assert [trial.value for trial in study.trials] == [10.0, 11.0, 9.0, None]
    assert study.best_trial.user_attrs["schedule"] == schedules[2].name
    assert study.best_trial.params["stages"] == ALL_VALUES["stages"].index(schedules[2].stages)
    assert study.trials[3].user_attrs["status"] == "timeout"
    with pytest.raises(BadInput, match="storage is 'nowhere'"):
        StudyView("nowhere")


def test_budget_rules() -> None:
    for bad in ({}, {"seconds": 0.0}, {"measurements": -1}, {"seconds": math.nan}):
        with pytest.raises(BadInput, match="budget"):
            Budget(**bad)  # type: ignore[arg-type]
    clock = [0.0]
    meter = Meter(Budget(measurements=10, seconds=100), lambda: clock[0], spent=4)
    assert meter.affordable(8) == 6
    meter.count(5)
    clock[0] = 90.0
    assert meter.affordable(8) == 1
    assert meter.affordable(8, share=0.8) == 0
    assert meter.affordable(8, planned=1) == 0
    assert gain([]) == math.inf
    assert gain([10.0, 8.0]) > gain([10.0, 10.0]) > gain([10.0] * 8)
    assert gain([None, None]) == pytest.approx(gain([10.0, 10.0]))
    with pytest.raises(BadInput, match="no problems"):
        tune([], SyntheticRunner(), Budget(measurements=1))


def test_proposals_are_fresh_valid_and_learn_from_failures() -> None:
    problem = PROBLEMS[1]
    space = WholeSpace(problem, H200)
    proposer = Proposer(space, seed=0, transfers=[COOP])
    proposed: list[Schedule] = []
    for _ in range(5):
        batch = proposer.propose(12, lambda schedules: [0.0] * len(schedules))
        assert len(batch) == 12
        assert not any(violations(problem, s, H200) for s in batch)
        proposed += batch
        proposer.tell({s: None if s.cluster_size > 1 else true_us(problem, s) for s in batch})
    assert len(set(proposed)) == len(proposed)
    assert space.project(COOP.to_json()) in proposed[:12]
    assert not proposer.exhausted
    fastest = min(true_us(problem, s) for s in proposed if s.cluster_size == 1)
    assert true_us(problem, proposer.best(1)[0]) == fastest


def test_what_the_same_product_liked_with_another_overlap_is_tried_first() -> None:
    problem, runner = PROBLEMS[0], SyntheticRunner()
    liked = Schedule.parse("coop1_64x24x64_s6_w0_c1x1_tile_rm1_reg0-0_tma16x2_swap_efb_l2-128")
    assert not violations(problem, liked, H200)
    history = JournalContents(measures=[measure(problem, liked, 9.0)])
    overlapping = replace(problem, overlap="weights")
    tune([overlapping], runner, Budget(measurements=12), history=history, options=Options(batch=12))
    assert (overlapping, replace(liked, dependent_launch="weights")) in runner.asked


def test_choices_newer_than_what_is_known_are_tried_first() -> None:
    """A journal from before `early_fill` has it nowhere: the best schedule with it is among the first proposals."""
    problem = PROBLEMS[0]
    space = WholeSpace(problem, H200)
    known = [m.schedule for m in journal([problem], each=40).measures if not m.schedule.early_fill]
    best = Schedule.parse("coop1_64x24x64_s6_w0_c1x1_tile_rm1_reg0-0_tma16x2_swap_efb_l2-128_straight")
    proposer = Proposer(space, seed=0)
    proposer.tell({best: 1.0, **dict.fromkeys(known, 2.0)})
    batch = proposer.propose(24, lambda schedules: [0.0] * len(schedules))
    assert replace(best, early_fill=True) in batch
    assert sum(s.early_fill for s in batch) < len(batch)


def test_listed_space_projects_onto_its_list(contents: JournalContents) -> None:
    problem = PROBLEMS[1]
    schedules = [m.schedule for m in contents.measures if m.problem == problem]
    space = ListedSpace(problem, H200, schedules)
    assert space.size == len(set(schedules))
    for s in schedules[:10]:
        assert space.project(s.to_json()) == s
        assert s not in space.neighbours(s)
        assert all(walk.kernel == s.kernel for walk in space.walks(s))
    assert space.project(COOP.to_json()) in schedules
    assert set(refinements(space, schedules[:2], random.Random(0))) <= set(schedules)


def test_race_keeps_the_best() -> None:
    problem = PROBLEMS[1]
    runner = SyntheticRunner()
    drafted = sorted(WholeSpace(problem, H200).draft(96, 0), key=lambda s: true_us(problem, s))
    entrants = drafted[:1]
    for s in drafted:  # no ties
        if len(entrants) < 8 and true_us(problem, s) > 1.03 * true_us(problem, entrants[-1]):
            entrants.append(s)
    assert len(entrants) == 8
    policies: list[str] = []
    kept = race(runner, problem, entrants, 2, lambda m: policies.append(m.policy))
    ranked = sorted(entrants, key=lambda s: (true_us(problem, s), s))
    assert kept == ranked[: len(kept)] and len(kept) < 5
    assert len(policies) == 8 + 4
    assert len(set(policies)) == 2 and SCREEN.key not in policies


def test_race_keeps_who_ties_with_the_best() -> None:
    """Chance would decide who of them reaches the end."""
    problem = PROBLEMS[1]
    entrants = WholeSpace(problem, H200).draft(8, 0)

    class Alike(SyntheticRunner):
        def measure(
            self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
        ) -> list[Measure]:
            return [measure(problem, s, 10.0 + 0.001 * i + 5 * (s in entrants[5:])) for i, s in enumerate(schedules)]

    assert race(Alike(), problem, entrants, 2, lambda _: None) == entrants[:5]


@pytest.mark.parametrize(("behind", "stays"), [(0.008, True), (0.012, False)])
def test_race_keeps_who_chance_may_have_put_behind(behind: float, stays: bool) -> None:
    """Two margins of 0.5 %."""
    problem = PROBLEMS[1]
    entrants = WholeSpace(problem, H200).draft(8, 0)
    last = entrants[-1]

    class Close(SyntheticRunner):
        def measure(
            self, problem: Problem, schedules: Sequence[Schedule], policy: Policy, on_measure: OnMeasure
        ) -> list[Measure]:
            return [
                measure(problem, s, 10.0 * (1 + behind if s == last else 1.0 if s in entrants[:4] else 1.5))
                for s in schedules
            ]

    assert (last in race(Close(), problem, entrants, 2, lambda _: None)) == stays


def test_ties_are_decided_the_same_way() -> None:
    problem = PROBLEMS[1]
    a, b, c = WholeSpace(problem, H200).draft(3, 0)

    close = [measure(problem, a, 10.02), measure(problem, b, 10.0), measure(problem, c, 11.0)]
    assert decide(close, H200) == decide(close[::-1], H200) == close[1]
    assert decide(close, H200, incumbent=a) == close[0]
    assert decide(close, H200, incumbent=c) == close[1]
    assert decide([measure(problem, a, 1.0, status="runtime")], H200) is None


def test_survey_covers_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = SyntheticRunner()
    first.stop_after = 70
    with Journal(path) as lines:
        assert survey(PROBLEMS[:2], first, 60, journal=lines).interrupted
    second = SyntheticRunner()
    with Journal(path) as lines:
        summary = survey(PROBLEMS[:2], second, 60, journal=lines)
    assert (summary.known, summary.measured) == (70, 50)
    asked = first.asked + second.asked
    assert Counter(problem for problem, _ in asked) == {PROBLEMS[0]: 60, PROBLEMS[1]: 60}
    assert len(set(asked)) == len(asked)
    assert len({s.kernel for _, s in asked}) < 0.8 * len(asked)
    assert {s.arrangement for _, s in asked} == {"coop", "pp"}
    with pytest.raises(BadInput):
        survey([], second, 10)


def test_replay_prefers_measures_of_the_policy_asked() -> None:
    problem = PROBLEMS[0]
    s = WholeSpace(problem, H200).draft(1, 0)[0]
    screened = measure_from_json({**line(problem, s, 10.0), "policy": SCREEN.key})
    final = measure_from_json({**line(problem, s, 12.0), "policy": "final"})
    runner = ReplayRunner(JournalContents(measures=[screened, final], envs={"synthetic": {"gpu": "x"}}), H200)
    found = runner.measure(problem, [s], SCREEN, lambda m: None)[0]
    assert (found.median_us, found.env) == (10.0, runner.env_key)
    assert runner.env == {"gpu": "x", "replay": True}
    assert runner.now() > 0


def test_live_runner_compiles_each_kernel_once_and_reports_failures() -> None:
    from tileseek.codegen import CompiledKernel
    from tileseek.measure.results import Candidate, Result

    problem = PROBLEMS[1]
    good, bad = WholeSpace(problem, H200).draft(2, 0)
    walk = WholeSpace(problem, H200).walks(good)[0]
    compiled: list[Schedule] = []

    class Pool:
        def compile_many(self, pairs, on_done):  # type: ignore[no-untyped-def]
            for index, (_, s) in enumerate(pairs):
                compiled.append(s.kernel)
                status, reason = ("audit", "spills") if s.kernel == bad.kernel else ("ok", "")
                on_done(index, CompiledKernel(status, b"x", "entry", None, reason, 0.1, "key", False))

    class Gpu:
        device, env, env_key, uuid = H200, {"gpu": "NVIDIA H200"}, "live", "GPU-0"

        def measure(self, problem, candidates: list[Candidate], policy, on_result):  # type: ignore[no-untyped-def]
            results = [Result(candidates[0].schedule, "correct", median_us=5.0, times_us=(5.0,), ratio_to_ref=1.1,
                              ratio_to_best=1.0, ratio_cycles=1.2, ratio_cycles_best=1.0),
                       Result(candidates[1].schedule, "timeout", "hung")]  # fmt: skip
            for result in results:
                on_result(result)
            return results

    journaled: list[Measure] = []
    with LiveRunner(Pool(), Gpu()) as runner:  # type: ignore[arg-type]
        runner.prepare(problem, [good, walk])
        found = runner.measure(problem, [good, bad, walk], SCREEN, journaled.append)
    assert Counter(compiled) == {good.kernel: 1, bad.kernel: 1}
    assert [m.status for m in found] == ["correct", "audit", "timeout"]
    assert [m.raw["kind"] for m in found] == ["measure", "compile", "measure"]
    assert found[1].raw["reason"] == "spills"
    assert found[0].ratio_cycles == 1.2 and found[2].median_us is None
    assert {m.schedule for m in journaled} == {good, bad, walk}
    assert all(m.policy == SCREEN.key and m.env == "live" for m in found)
