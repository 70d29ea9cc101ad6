"""`tileseek bench search`: how few measurements find the best schedule, by replay of a journal. No GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..heuristics.table import all_measures, build_table
from ..results import journal_path
from ..space import H200, BadInput, find_device
from .inputs import AsJson, DocumentPath, MeasuredOn, read_journals, require, whole_number
from .output import check_writable, command_line, dumps_json, print_table, progress, write_text


def command(
    journal: Annotated[
        list[Path] | None, typer.Option(help="Journal to replay (default: bundled); may be repeated.")
    ] = None,
    device: MeasuredOn = H200.name,
    arm: Annotated[list[str] | None, typer.Option(help="Way of searching (default: all); may be repeated.")] = None,
    folds: Annotated[int, typer.Option(parser=whole_number, help="Parts of the families, each held out once.")] = 10,
    least: Annotated[
        int, typer.Option(parser=whole_number, help="Schedules a problem must have; those with fewer only teach.")
    ] = 300,
    seed: Annotated[int, typer.Option(parser=whole_number, help="Seed of everything drawn.")] = 0,
    out: DocumentPath = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of the curves, such as curves.svg.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare ways of searching on a journal: how close to its best schedule they are after 1, 2, 4 ... measurements,
    and what a table's query answers after none.

    Problems are held out by (n, k) family: what a search or a table knows beforehand was measured on other families.
    """
    if folds < 2:
        raise BadInput(f"--folds is {folds}: valid is 2 or more")
    require("search", "optuna", "sklearn", "numpy")
    if plot is not None:
        require("plot", "matplotlib")
    for path in (out, plot):
        if path is not None:
            check_writable(path)
    from ..search.answers import answers
    from ..search.benchmark import arm_names, document, replay

    arms = arm_names(arm)
    where = find_device(device)
    contents = read_journals(journal or [journal_path(where)])
    measures = all_measures(contents, where)
    with progress("replaying", len({m.problem for m in measures}), lines=True) as advance:
        found = replay(measures, where, arms=arms, folds=folds, least=least, seed=seed, progress=advance)
    with progress("asking", len(found), lines=True) as advance:
        table = build_table(contents, where)
        answered = answers(measures, table, folds=folds, least=least, seed=seed, progress=advance)
    facts = {"command": command_line(), "device": where.name, **document(found, answered)}
    if out is not None:
        write_text(out, dumps_json(facts))
    if plot is not None:
        _plot(facts, plot)
    if as_json:
        write_text(None, dumps_json(facts))
    else:
        _print(facts)


def _print(facts: Mapping[str, Any]) -> None:
    print(f"{facts['problems']} problems, {facts['schedules']} schedules; percent of the best, by measurements")
    for title, name in (
        ("geometric mean", "geomean"),
        ("worst decile", "worst_decile"),
        ("share of problems within 2 %", "within_2"),
    ):
        print()
        rows = [[arm, *(f"{100 * at[name]:.1f}" for at in curve.values())] for arm, curve in facts["arms"].items()]
        print_table([title, *next(iter(facts["arms"].values()))], rows)
    prune, expected = facts["prune"], facts["expected_us"]
    print(
        f"\npruned to {prune['kept']:.0%} of the valid space, the best schedule is kept on"
        f" {prune['space_recall']:.0%} of problems, of a draw even over each dimension on {prune['drawn_recall']:.0%};"
        f"\nto {prune['kept']:.0%} of what was measured on {prune['measured_recall']:.0%},"
        f" it or one within {prune['tie']:.0%} on {prune['measured_recall_of_ties']:.0%}"
    )
    print(f"expected time of the best schedule: off by {expected['median_abs_log_ratio']:.1%} in the median")
    print(
        "\nanswers for a problem whose family the table does not know, percent of the best; not measured ones judged:"
    )
    ways = facts["answers"].items()
    numbers = ("geomean", "worst_decile", "within_2", "measured", "expected_off")
    rows = [[way, *("-" if at[name] is None else f"{100 * at[name]:.1f}" for name in numbers)] for way, at in ways]
    print_table(["", "geometric mean", "worst decile", "within 2 %", "measured", "expected off"], rows)


def _plot(facts: Mapping[str, Any], path: Path) -> None:
    """Regret against measurements, an axis each for the mean and the worst decile."""
    import matplotlib

    matplotlib.use("Agg")
    # Equal results give equal files.
    matplotlib.rcParams["svg.hashsalt"] = "tileseek"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for axis, title, name in zip(axes, ("geometric mean", "worst decile"), ("geomean", "worst_decile"), strict=True):
        for arm, curve in facts["arms"].items():
            regret = [100 * (1 / at[name] - 1) for at in curve.values()]
            axis.plot([int(count) for count in curve], regret, marker="o", label=arm)
        axis.set(title=title, xscale="log", yscale="symlog", xlabel="measurements")
        axis.set_xticks([int(count) for count in curve], list(curve))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("slower than the best measured, %")
    axes[1].legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
