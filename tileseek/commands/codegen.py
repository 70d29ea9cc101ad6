"""`tileseek codegen`: the kernel of a schedule, as source, machine code, or audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..api import best_schedule, load_table, local_device
from ..codegen.source import generate
from ..space import H200, BadInput
from .inputs import AsJson, Asked, TablePath, check_schedule, for_problems, one_problem
from .output import print_json, write_text


@for_problems
def command(
    asked: Asked,
    schedule: Annotated[str | None, typer.Option(help="Name of a schedule (default: the best one known).")] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code instead.")] = False,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Print the static facts of the compiled kernel instead; fails if it is rejected."),
    ] = False,
    table: TablePath = None,
    out: Annotated[Path | None, typer.Option(help="File to write (default: stdout).")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the generated CUDA source of one problem, or what the compiler made of it."""
    if sass and audit:
        raise BadInput("--sass and --audit are both given: valid is one of them")
    if as_json and not audit:
        raise BadInput("--json is given without --audit: source and machine code are text")
    problem = one_problem(asked.problems)
    if schedule is None:
        chosen = best_schedule(problem, load_table(table)).schedule
    else:
        chosen = check_schedule(schedule, problem, local_device() or H200)
    if not (sass or audit):
        write_text(out, generate(problem, chosen).text)
        return

    from ..codegen.compiler import compile_kernel

    kernel = compile_kernel(problem, chosen)
    if audit and kernel.audit is not None:
        accepted = kernel.status == "ok"
        document = {
            "schedule": chosen.name,
            "accepted": accepted,
            "reason": kernel.reason,
            "instructions_per_wgmma": round(kernel.audit.instructions_per_wgmma, 2),
            **kernel.audit.to_json(),
        }
        for facts, loop in zip(document["loops"], kernel.audit.loops, strict=True):
            facts["budget"] = loop.budget
        if as_json:
            print_json(document)
        else:
            write_text(out, "".join(f"{name:<24}{words}\n" for name, words in _lines(document)))
        if not accepted:
            raise typer.Exit(1)
        return
    if not kernel.cubin:
        raise BadInput(f"schedule {chosen} does not compile ({kernel.status}): {kernel.reason}")

    from ..codegen.sass import disassemble

    write_text(out, disassemble(kernel.cubin))


def _lines(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of an audit, one loop a line; a reason only where there is one."""
    for name, value in document.items():
        if name == "loops":
            for loop in value:
                yield "loop", ", ".join(f"{fact} {count}" for fact, count in loop.items())
        elif isinstance(value, list | tuple):
            yield name, "; ".join(map(str, value)) or "none"
        elif value != "":
            yield name, str(value)
