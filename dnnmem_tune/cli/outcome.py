"""How every command ends: its exit code, and one line on standard error where it fails."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup

from dnnmem_tune.errors import DnnMemError, UsageError

Parameters = ParamSpec("Parameters")


class ExitCode(IntEnum):
    """What a command tells a script."""

    FITS = 0
    """The job fits; or the command, which has no verdict, did its work."""

    FAILURE = 1
    """The workload or a trace failed, or it cannot be said whether the job fits."""

    USAGE = 2
    """An argument cannot be meant."""

    EXCEEDS = 3
    """The job does not fit."""

    INTERRUPTED = 130
    """Ctrl-C, as shells number it."""


def exit_code(fits: bool | None) -> ExitCode:
    """Return the code of a verdict; *unknown* is a failure to say, and no verdict."""
    return {True: ExitCode.FITS, False: ExitCode.EXCEEDS, None: ExitCode.FAILURE}[fits]


def command(function: Callable[Parameters, ExitCode]) -> Callable[Parameters, None]:
    """Make a command of a function that returns its exit code and may raise errors of this package.

    Anything else that is raised is a defect of this package, and keeps its traceback.
    """

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            code = function(*args, **kwargs)
            sys.stdout.flush()
        except UsageError as error:
            code = _fail(str(error), ExitCode.USAGE)
        except DnnMemError as error:
            code = _fail(str(error), ExitCode.FAILURE)
        except KeyboardInterrupt:
            code = _fail("interrupted", ExitCode.INTERRUPTED)
        except BrokenPipeError:
            # The reader has seen enough (``| head``); nothing more may be written, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = ExitCode.FAILURE
        raise typer.Exit(int(code))

    return run


class OneLineGroup(TyperGroup):
    """A group of commands in which a mistake of usage is one line, as every other error is."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run with these arguments."""
        return _in_one_line(super().main, args, standalone_mode, kwargs)


class OneLineCommand(TyperCommand):
    """A command in which a mistake of usage is one line, as every other error is."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run with these arguments."""
        return _in_one_line(super().main, args, standalone_mode, kwargs)


def _in_one_line(run: Callable[..., Any], args: Any, standalone_mode: bool, kwargs: Any) -> Any:
    """Parse and run; the parser's own errors are known by ``format_message``, whichever click they come from."""
    try:
        code = run(*args, standalone_mode=False, **kwargs)
    except Exception as error:
        if not standalone_mode or not hasattr(error, "format_message"):
            raise
        code = _fail(f"{error.format_message().rstrip('.')} (see --help)", ExitCode.USAGE)
    if standalone_mode:
        sys.exit(code or 0)
    return code


def _fail(message: str, code: ExitCode) -> ExitCode:
    line = " ".join(message.split())
    typer.echo(f"dnnmem: {line}", err=True)
    return code
