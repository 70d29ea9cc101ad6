"""The command line: one small module a command, and the one place that turns bad input into a line and exit code 2."""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from . import __version__
from .commands import (
    bench,
    bench_search,
    calibrate,
    codegen,
    dataset,
    doctor,
    export,
    noise,
    portfolio,
    query,
    recheck,
    report,
    roadmap,
    speed,
    tune,
)
from .space import BadInput


class _Commands(TyperGroup):
    """Commands, among them some of two words: `bench search` is one, beside `bench PROBLEMS`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        words = " ".join(args[:2])
        return super().resolve_command(ctx, [words, *args[2:]] if words in self.commands else args)


app = typer.Typer(
    name="tileseek",
    cls=_Commands,
    help="Find the fastest way to run a matrix multiplication on an NVIDIA Hopper GPU.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
# A negative size is a wrong value, not an unknown option (`inputs.read_problems` tells them apart).
_NUMBERS = {"ignore_unknown_options": True}
app.command("tune", context_settings=_NUMBERS)(tune.command)
app.command("query", context_settings=_NUMBERS)(query.command)
app.command("codegen", context_settings=_NUMBERS)(codegen.command)
app.command("bench", context_settings=_NUMBERS)(bench.command)
app.command("bench search")(bench_search.command)
app.command("dataset", context_settings=_NUMBERS)(dataset.command)
app.command("noise", context_settings=_NUMBERS)(noise.command)
app.command("recheck", context_settings=_NUMBERS)(recheck.command)
app.command("portfolio")(portfolio.command)
app.command("calibrate")(calibrate.command)
app.command("export")(export.command)
app.command("report")(report.command)
app.command("doctor")(doctor.command)
app.command("speed")(speed.command)
app.command("roadmap")(roadmap.command)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"tileseek {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Find the fastest way to run a matrix multiplication on an NVIDIA Hopper GPU."""


def main() -> None:
    """The entry point. Exit codes: 0 done, 2 bad input, 130 interrupted; anything else is a bug and shows itself."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = app(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except BadInput as error:
        _refuse(str(error))
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nobody is left to tell.
        _drop_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        if error.filename is None:
            _drop_stdout()
        _refuse(f"cannot write {error.filename or 'the output'}: {error.strerror}")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        # Usage errors of typer (and of click, which older versions build on) know how to print themselves.
        if not hasattr(error, "format_message"):
            raise
        _refuse(error.format_message())


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere: it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning for a user is a line; where in the source it was raised says nothing to them."""
    print(f"tileseek: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> None:
    print(f"tileseek: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
