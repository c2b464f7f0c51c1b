"""How every command ends: its exit code, and one line on standard error where it fails."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec

import typer

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


def _fail(message: str, code: ExitCode) -> ExitCode:
    line = " ".join(message.split())
    typer.echo(f"dnnmem: {line}", err=True)
    return code
