"""`tileseek tune`: search the best schedules of many problems, live on a Hopper GPU or replayed from a journal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from ..api import load_noise, load_table
from ..heuristics.journal import Journal, JournalContents, Measure, read_journal
from ..heuristics.query import predictor_of
from ..heuristics.report import report, some_of
from ..heuristics.table import Table, current, newest_tools
from ..measure.gpus import HOPPER, gpus, hopper
from ..results import has_table, journal_path
from ..space import DEVICES, FOR_TIME, H200, BadInput, Device, NamedProblem, Problem, Schedule, unsupported
from ..tables import make_table
from .inputs import Asked, Objective, check_objective, for_problems, number, read_journals, require, whole_number
from .output import command_line, notes, progress, write_text

if TYPE_CHECKING:
    from ..cost_model.predictor import Predictor
    from ..search.budget import Budget
    from ..search.runner import Runner
    from ..search.study import StudyView
    from ..search.tuner import Options, Summary

JOURNAL = "journal.jsonl"

MEASUREMENTS = 100
"""Measurements for each problem, when no budget is given."""


@for_problems
def command(
    asked: Asked,
    out: Annotated[Path | None, typer.Option(help="Run folder (default: runs/ and the name of the problems).")] = None,
    measurements: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, help=f"Budget over all problems, in measurements (default: {MEASUREMENTS} each)."
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(parser=number, help="Budget over all problems, in seconds.")] = None,
    seed: Annotated[int, typer.Option(parser=whole_number, help="Seed of the search.")] = 0,
    gpu: Annotated[
        int | None, typer.Option(parser=whole_number, help="Number of the GPU (default: 0, else replay).")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Journal to replay instead of measuring.")] = None,
    objective: Objective = FOR_TIME,
    sampler: Annotated[str, typer.Option(help="Optuna's sampler: tpe, qmc, genetic or random.")] = "tpe",
    storage: Annotated[
        str | None,
        typer.Option(help="Database that shows the search, such as sqlite:///study.db for optuna-dashboard."),
    ] = None,
) -> None:
    """Search the best schedule of each problem; write the journal, a table and a report into the run folder.

    A run can be interrupted at any moment, and the same command goes on where it stopped. Without a Hopper GPU the
    bundled journal of an H200 is replayed.
    """
    named = asked.problems
    check_objective(objective)
    require("search", "optuna", "sklearn", "numpy")
    from ..search.budget import Budget
    from ..search.study import StudyView
    from ..search.tuner import Options

    view = None if storage is None else StudyView(storage)
    options = Options(seed=seed, objective=objective, sampler=sampler)
    given = None if measurements is None and seconds is None else Budget(measurements, seconds)
    folder = out or Path("runs") / asked.name
    with _world(named, gpu, replay, folder / JOURNAL, objective) as world:
        budget = given or Budget(MEASUREMENTS * len(world.named))
        options = replace(options, noise=load_noise(world.runner.device))
        summary, failure = _search(world, budget, options, view)
    _write(folder, world, objective)
    _tell(world, summary, folder)
    if failure is not None:
        notes.print(f"stopped: {failure}")
    if summary is not None and not summary.winners and not summary.interrupted:
        notes.print("no schedule of any problem is correct: `tileseek doctor` looks at the machine")
        raise typer.Exit(1)
    if summary is None or summary.interrupted:
        notes.print(f"to go on where it stopped: {command_line()}")
        raise typer.Exit(130 if failure is None else 1)


@dataclass(frozen=True, slots=True)
class World:
    """Who measures, which problems, where to, and what is known before."""

    runner: Runner
    named: Sequence[NamedProblem]
    journal: Journal
    history: JournalContents
    incumbents: Mapping[Problem, Schedule]
    predictor: Predictor | None = None
    """What the bundled journal teaches, learned beforehand."""


@contextlib.contextmanager
def _world(
    named: Sequence[NamedProblem], gpu: int | None, replay: Path | None, journal: Path, objective: str
) -> Iterator[World]:
    if replay is None and gpu is None and not any(found.cc == HOPPER for found in gpus()[:1]):
        seen = ", ".join(found.name for found in gpus()) or "no GPU"
        replay = journal_path(H200)
        notes.print(f"no Hopper GPU here ({seen}): replaying what was measured on an H200")
    if replay is not None:
        if gpu is not None:
            raise BadInput(f"--gpu {gpu} and --replay are both given: valid is one of them")
        with _replayed(named, replay, journal, objective) as world:
            yield world
        return
    with live(named, gpu or 0, journal) as world:
        yield world


@contextlib.contextmanager
def _replayed(named: Sequence[NamedProblem], path: Path, journal: Path, objective: str) -> Iterator[World]:
    from ..search.runner import ReplayRunner

    everything = read_journals([path])
    device = _device(everything)
    recorded = current(everything, device)
    recorded.measures = [measure for measure in recorded.measures if measure.objective == objective]
    if not recorded.measures:
        raise BadInput(f"{path} holds no measurement made for the objective {objective}: valid is another journal")
    measured = {measure.problem for measure in recorded.measures}
    kept = _keep(
        named, lambda problem: "" if problem in measured else _impossible(problem, device) or "it is not in the journal"
    )
    notes.print(f"{len(recorded.measures)} measurements of {len(measured)} problems on {device.name}")
    with Journal(journal, alone=True) as lines:
        yield World(ReplayRunner(recorded, device), kept, lines, _history(journal), {})


@contextlib.contextmanager
def live(named: Sequence[NamedProblem], gpu: int, journal: Path) -> Iterator[World]:
    """A Hopper GPU to measure on, and what `journal` and the bundled journal know of the problems.

    Raises:
        BadInput: there is none, none of the problems can be tuned, or another run writes the journal.
    """
    device = hopper(gpu).device
    require("tune", "torch", "cuda.bindings")
    from ..codegen import CompilePool
    from ..measure.supervisor import Measurer
    from ..search.runner import LiveRunner

    kept = _keep(named, lambda problem: _impossible(problem, device))
    with Journal(journal, alone=True) as lines:
        history = _history(journal)
        reading = _reading_bundled(device)
        table = load_table(device=device) if has_table(device) else Table(device, "", "", ())
        incumbents = {problem: entry.schedule for problem, entry in table.by_problem.items()}
        with CompilePool() as pool, Measurer(gpu) as measurer, LiveRunner(pool, measurer) as runner:
            history.measures += reading.result()
            yield World(runner, kept, lines, history, incumbents, predictor_of(table))


def _reading_bundled(device: Device) -> Future[list[Measure]]:
    """`_bundled_measures` to come: the journal is long, and read while the measuring process starts. Where that fails,
    or Ctrl-C ends the wait, nobody waits for the reading either."""
    reading: Future[list[Measure]] = Future()

    def read() -> None:
        try:
            reading.set_result(_bundled_measures(device))
        except Exception as error:
            reading.set_exception(error)

    Thread(target=read, daemon=True).start()
    return reading


def _bundled_measures(device: Device) -> list[Measure]:
    """What the bundled journal of a device class teaches; it says nothing about this very machine."""
    if not has_table(device):
        return []
    return [replace(measure, env="") for measure in read_journal(journal_path(device)).measures]


def _history(journal: Path) -> JournalContents:
    """What an earlier run left in its folder."""
    if not journal.stat().st_size:
        return JournalContents()
    history = read_journals([journal])
    notes.print(f"going on from {journal} with {len(history.measures)} measurements")
    return history


def _device(recorded: JournalContents) -> Device:
    """The device class that a journal was made on.

    Raises:
        BadInput: none is known.
    """
    for device in DEVICES:
        with contextlib.suppress(BadInput):
            newest_tools(recorded, device)
            return device
    raise BadInput("the journal holds no measurement of a known device: valid is one that `tileseek tune` made")


def _impossible(problem: Problem, device: Device) -> str:
    """Why no kernel computes the problem; no words where one does."""
    return "; ".join(unsupported(problem, device))


def _keep(named: Sequence[NamedProblem], obstacle: Callable[[Problem], str]) -> list[NamedProblem]:
    """The problems that can be tuned; the others are named on stderr.

    Raises:
        BadInput: none can.
    """
    obstacles = {each.name: obstacle(each.problem) for each in named}
    kept = [each for each in named if not obstacles[each.name]]
    if not kept:
        name, reason = next(iter(obstacles.items()))
        raise BadInput(f"none of {len(named)} problems can be tuned; {name}: {reason}")
    left_out = [name for name, reason in obstacles.items() if reason]
    if left_out:
        # One example of each reason.
        examples = {reason: name for name, reason in reversed(obstacles.items()) if reason}
        why = [f"{name}: {reason}" for reason, name in reversed(examples.items())]
        notes.print(f"left out {len(left_out)} of {len(named)} problems: {some_of(left_out)} ({some_of(why, most=4)})")
    return kept


def _search(
    world: World, budget: Budget, options: Options, view: StudyView | None
) -> tuple[Summary | None, Exception | None]:
    """The summary, or the failure that ended the run: what was measured until then is in the journal."""
    from ..measure.supervisor import MeasureError
    from ..search.tuner import Progress, tune

    problems = [each.problem for each in world.named]
    if view is not None:
        own = [m for m in [*world.history.measures, *world.history.compiles] if m.env == world.runner.env_key]
        view.begin(problems, own)
    total = budget.measurements or budget.seconds or 0
    with progress("search", total) as bar:

        def show(at: Progress) -> None:
            bar(at.phase, at.measured if budget.measurements else at.elapsed_s)
            if view is not None:
                view.add(at.measure)

        try:
            summary = tune(
                problems,
                world.runner,
                budget,
                journal=world.journal,
                history=world.history,
                ranker=world.predictor,
                incumbents=world.incumbents,
                options=options,
                progress=show,
            )
        except MeasureError as error:
            return None, error
    return summary, None


def _write(folder: Path, world: World, objective: str) -> None:
    contents = read_journal(folder / JOURNAL)
    if not any(measure.status == "correct" for measure in contents.measures):
        return
    table = make_table(contents, world.runner.device, objective)
    write_text(folder / "table.json", table.dumps())
    write_text(folder / "report.md", report(contents, table, world.named))


def _tell(world: World, summary: Summary | None, folder: Path) -> None:
    if summary is None:
        return
    names = {each.problem: each.name for each in world.named}
    for problem, reason in summary.failed.items():
        notes.print(f"{names[problem]}: no correct schedule ({reason})")
    print(
        f"{len(summary.winners)} of {len(world.named)} problems have a schedule:"
        f" {summary.measured} new measurements, {summary.known} known before"
    )
    print(f"{folder / 'report.md'}\n{folder / 'table.json'}\n{folder / JOURNAL}")
