"""`tileseek dataset`: measure schedules broadly, not only the best: what models and replayed searches learn from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ..space import BadInput
from .inputs import Asked, GpuNumber, for_problems, number, whole_number
from .output import notes, progress
from .tune import JOURNAL, live


@for_problems
def command(
    asked: Asked,
    per_problem: Annotated[int, typer.Option(parser=whole_number, help="Schedules of each problem.")] = 300,
    seconds: Annotated[float | None, typer.Option(parser=number, help="Stop after that long (default: never).")] = None,
    out: Annotated[Path, typer.Option(help="Run folder, which gets the journal.")] = Path("runs/dataset"),
    seed: Annotated[int, typer.Option(parser=whole_number, help="Seed of the random schedules.")] = 0,
    gpu: GpuNumber = 0,
) -> None:
    """Measure the model's favourites, random schedules of the whole space, and neighbours of the best.

    An interrupted run goes on from its journal when the same command is given again.
    """
    if per_problem < 1:
        raise BadInput(f"--per-problem is {per_problem}: valid is 1 or more")
    if seconds is not None and not 0 < seconds < math.inf:
        raise BadInput(f"--seconds is {seconds:g}: valid is a positive number")
    journal_file = out / JOURNAL
    with live(asked.problems, gpu, journal_file) as world:
        from ..search.survey import survey
        from ..search.tuner import Progress

        with progress("measuring", per_problem * len(world.named)) as bar:

            def show(at: Progress) -> None:
                bar(at.phase, at.measured)
                if seconds is not None and at.elapsed_s > seconds:
                    raise KeyboardInterrupt

            summary = survey(
                [each.problem for each in world.named],
                world.runner,
                per_problem,
                journal=world.journal,
                history=world.history,
                seed=seed,
                progress=show,
            )
    print(f"{summary.known + summary.measured} schedules of {len(world.named)} problems in {journal_file}")
    if summary.interrupted:
        notes.print("interrupted; the same command goes on from the journal")
        raise typer.Exit(130)
