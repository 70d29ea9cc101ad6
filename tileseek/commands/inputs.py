"""What commands take: problems, tables, schedules. Everything wrong becomes a `BadInput` of one line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..heuristics.journal import JournalContents, read_journal
from ..problems import suite, suite_names
from ..space import OBJECTIVES, BadInput, Device, NamedProblem, Problem, Schedule, read_suite, shown, violations
from .output import notes


def whole_number(word: str) -> int:
    """The parser of options that are whole numbers."""
    try:
        return int(word)
    except ValueError:
        raise BadInput(f"{shown(word)} is not a whole number") from None


def number(word: str) -> float:
    """The parser of options that are numbers."""
    try:
        return float(word)
    except ValueError:
        raise BadInput(f"{shown(word)} is not a number") from None


Objective = Annotated[str, typer.Option(help="What to tune for: time (default), energy, or edp, their product.")]
TablePath = Annotated[Path | None, typer.Option("--table", help="Table to use instead of the bundled one.")]
GpuNumber = Annotated[int, typer.Option(parser=whole_number, help="Number of the GPU.")]
MeasuredOn = Annotated[str, typer.Option("--device", help="Device class that measured.")]
DocumentPath = Annotated[Path | None, typer.Option("--out", help="File that gets the JSON document.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """The problems that a command line names, and what they are called together."""

    name: str
    problems: list[NamedProblem]


def read_problems(
    problems: Annotated[
        list[str],
        typer.Argument(metavar="M N K | SUITE | FILE.csv", help="Sizes, a bundled suite, or a CSV of problems."),
    ],
    dtype: Annotated[
        str | None, typer.Option(help="Operand dtype: bf16 (default), fp16, fp8 (e4m3) or fp8_e5m2.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Storage of A then B: nt (default) is A [M, K] and B [N, K].")
    ] = None,
    epilogue: Annotated[str | None, typer.Option(help="What is fused after the product: none (default).")] = None,
    overlap: Annotated[
        str | None, typer.Option(help="What may overlap the kernel ahead: none (default), launch or weights.")
    ] = None,
    out_dtype: Annotated[
        str | None, typer.Option(help="Output dtype: bf16, fp16, fp32 or fp8 (default: the operands', bf16 for fp8).")
    ] = None,
    accumulate: Annotated[
        str | None, typer.Option(help="Sums of fp8 products: fast (default), or promoted to fp32 every 128 of k.")
    ] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="No sums in the order of arrival.")] = False,
) -> Asked:
    """The problems that the words and options of a command line name; the options go with sizes.

    Raises:
        BadInput: the words are neither three sizes, nor a bundled suite, nor a readable CSV.
    """
    words = problems
    options = {
        "dtype": dtype,
        "layout": layout,
        "epilogue": epilogue,
        "overlap": overlap,
        "out_dtype": out_dtype,
        "accumulate": accumulate,
        "deterministic": deterministic,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value not in (None, False)}
    unknown = [word for word in words if word.startswith("-") and not word[1:2].isdigit()]
    if unknown:
        raise BadInput(f"option {unknown[0]} is unknown: --help lists the valid ones")
    if len(words) == 3:
        m, n, k = (_size(name, word) for name, word in zip("mnk", words, strict=True))
        problem = Problem(m, n, k, **given)
        return Asked(problem.key, [NamedProblem(problem.key, problem)])
    if len(words) != 1:
        raise BadInput(
            f"problems are {shown(' '.join(words))}: valid are three sizes M N K,"
            f" a bundled suite ({', '.join(suite_names())}), or the path of a CSV file"
        )
    if given:
        option = next(iter(given)).replace("_", "-")
        raise BadInput(f"--{option} goes with sizes: the problems of {words[0]!r} say their own")
    word = words[0]
    return Asked(Path(word).stem, read_suite(word) if word.endswith(".csv") or _is_file(word) else suite(word))


def for_problems(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer is to see it: in place of its first parameter it takes what `read_problems` takes."""
    own = inspect.signature(read_problems, eval_str=True).parameters
    others = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def with_words(problems: list[str], **given: Any) -> None:
        asked = read_problems(problems, **{name: given.pop(name) for name in own if name in given})
        command(asked, **given)

    signature = inspect.Signature([*own.values(), *others])
    with_words.__signature__ = signature  # type: ignore[attr-defined]
    with_words.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return with_words


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # too long, or with a zero byte: no name of a file
        return False


def check_objective(word: str) -> str:
    """The objective of that name.

    Raises:
        BadInput: there is none.
    """
    if word not in OBJECTIVES:
        raise BadInput(f"objective is {shown(word)}: valid are {', '.join(OBJECTIVES)}")
    return word


def journal_files(path: Path) -> list[Path]:
    """The journals that a path names: itself, or those in a run folder.

    Raises:
        BadInput: the folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")])
    if not files:
        raise BadInput(f"no journal in the folder {path}: valid is a folder that `tileseek tune` wrote")
    return files


def read_journals(paths: Sequence[Path]) -> JournalContents:
    """The contents of journals; lines that cannot be read are counted on stderr.

    Raises:
        BadInput: a file does not exist or cannot be opened.
    """
    contents = read_journal(paths)
    if contents.skipped:
        notes.print(f"{', '.join(map(str, paths))}: {contents.skipped} lines skipped as unreadable")
    return contents


def require(extra: str, *modules: str) -> None:
    """Check that what a command needs is installed.

    Raises:
        BadInput: a module is missing, which the optional dependencies `extra` bring.
    """
    for module in modules:
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise BadInput(f"the package {module} is not installed: valid is an installation of tileseek[{extra}]")


def check_schedule(name: str, problem: Problem, device: Device) -> Schedule:
    """The schedule of that name, which has to be able to run `problem`.

    Raises:
        BadInput: the name is none, or the schedule breaks rules.
    """
    schedule = Schedule.parse(name)
    reasons = violations(problem, schedule, device)
    if reasons:
        raise BadInput(f"schedule {name} cannot run {problem.key}: {'; '.join(reasons)}")
    return schedule


def one_problem(named: Sequence[NamedProblem]) -> Problem:
    """The only problem of `named`.

    Raises:
        BadInput: there are several.
    """
    if len(named) != 1:
        raise BadInput(f"{len(named)} problems are named: valid is one, such as M N K")
    return named[0].problem


def _size(name: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise BadInput(f"{name} is {shown(word)}: valid is a positive integer") from None
