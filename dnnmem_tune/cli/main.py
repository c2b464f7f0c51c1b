"""The commands ``dnnmem`` and ``dnnmem-maxbatch``.

One module holds one command, as a function of the same name; this file only lists them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

import dnnmem_tune
from dnnmem_tune.cli.outcome import OneLineCommand, OneLineGroup

COMMANDS = ("estimate", "maxbatch", "dryrun", "compare", "space", "check", "gpus", "emulator")
"""Modules of this package, in the order of the help."""


def make_app() -> typer.Typer:
    """Return ``dnnmem``."""
    app = typer.Typer(
        name="dnnmem",
        help="GPU memory of a training job, before it runs. No GPU is needed.",
        cls=OneLineGroup,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_global_options)
    for name in COMMANDS:
        app.command(name)(getattr(import_module(f"dnnmem_tune.cli.{name}"), name))
    return app


def _global_options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=lambda on: _print_version(on)
        ),
    ] = False,
) -> None:
    """GPU memory of a training job, before it runs. No GPU is needed."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dnnmem_tune {dnnmem_tune.__version__}")
        raise typer.Exit


def main() -> None:
    """Run ``dnnmem``."""
    make_app()(args=sys.argv[1:] or ["--help"])


def make_maxbatch_app() -> typer.Typer:
    """Return ``dnnmem-maxbatch``: ``dnnmem maxbatch`` under a name of its own."""
    from dnnmem_tune.cli.maxbatch import maxbatch

    app = typer.Typer(name="dnnmem-maxbatch", pretty_exceptions_enable=False, add_completion=False)
    app.command(cls=OneLineCommand)(maxbatch)
    return app


def maxbatch_main() -> None:
    """Run ``dnnmem-maxbatch``."""
    make_maxbatch_app()()
