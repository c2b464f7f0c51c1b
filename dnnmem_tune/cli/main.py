"""The commands ``dnnmem`` and ``dnnmem-maxbatch``.

One module holds one command, as a function of the same name; this file only lists them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

import dnnmem_tune

COMMANDS = ("estimate", "maxbatch", "compare", "check", "gpus")
"""Modules of this package, in the order of the help."""


def _app() -> typer.Typer:
    app = typer.Typer(
        name="dnnmem",
        help="GPU memory of a training job, before it runs. No GPU is needed.",
        no_args_is_help=True,
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
    _app()()


def maxbatch_main() -> None:
    """Run ``dnnmem-maxbatch``."""
    from dnnmem_tune.cli.maxbatch import maxbatch

    app = typer.Typer(name="dnnmem-maxbatch", pretty_exceptions_enable=False, add_completion=False)
    app.command()(maxbatch)
    app()
