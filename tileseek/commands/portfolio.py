"""`tileseek portfolio`: the few kernels that serve many problems nearly as well as the best kernel of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..heuristics.portfolio import portfolio
from ..heuristics.table import current_measures
from ..results import journal_path
from ..space import H200, BadInput, find_device
from .inputs import AsJson, DocumentPath, MeasuredOn, number, read_journals, read_problems, whole_number
from .output import check_writable, dumps_json, print_table, write_text


def command(
    journal: Annotated[
        list[Path] | None, typer.Option(help="Journal to choose from (default: bundled); may be repeated.")
    ] = None,
    device: MeasuredOn = H200.name,
    suite: Annotated[
        str | None, typer.Option(help="Only the problems of this bundled suite or CSV (default: all).")
    ] = None,
    loss: Annotated[
        float, typer.Option(parser=number, help="Loss to stay within, in the geometric mean over problems.")
    ] = 0.03,
    least: Annotated[
        int, typer.Option(parser=whole_number, help="Leave out problems measured with fewer schedules.")
    ] = 1,
    out: DocumentPath = None,
    as_json: AsJson = False,
) -> None:
    """Choose the fewest kernels that lose at most --loss against the best known, and show loss against their number.

    Only measured pairs of kernel and problem count. Launch choices, such as the walk over the tiles, come free.
    """
    if out is not None:
        check_writable(out)
    where = find_device(device)
    measures = current_measures(read_journals(journal or [journal_path(where)]), where)
    if suite is not None:
        wanted = {named.problem for named in read_problems([suite]).problems}
        measures = [measure for measure in measures if measure.problem in wanted]
        if not measures:
            raise BadInput(f"none of the {len(wanted)} problems of {suite} was measured: valid are measured problems")
    chosen = portfolio(measures, loss, least)
    document = dumps_json({"device": where.name, "suite": suite, "loss": loss, "least": least, **chosen.to_json()})
    if out is not None:
        write_text(out, document)
    if as_json:
        write_text(None, document)
        return
    rows = zip(chosen.kernels, chosen.geomean, chosen.worst, strict=True)
    print_table(
        ["kernels", "mean loss", "worst loss", "joins", "for"],
        [
            [str(count), f"{mean:.2%}", f"{worst:.2%}", kernel.schedule.name, str(kernel.kind)]
            for count, (kernel, mean, worst) in enumerate(rows, start=1)
        ],
    )
    print(f"{len(chosen.kernels)} kernels serve {len(chosen.served)} problems within {chosen.geomean[-1]:.2%}")
