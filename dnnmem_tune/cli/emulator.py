"""``dnnmem emulator``: the built stub libraries of this user."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command


class Action(StrEnum):
    """What to do with them."""

    STATUS = "status"
    BUILD = "build"
    CLEAN = "clean"


@command
def emulator(
    action: Annotated[
        Action, typer.Argument(help="status, build (otherwise done at first use) or clean.")
    ] = Action.STATUS,
    python: Annotated[
        str | None,
        typer.Option("--python", help="Interpreter that has a CUDA build of PyTorch; this one by default."),
    ] = None,
    compiler: Annotated[
        str | None, typer.Option("--compiler", help="C++ compiler; the machine's by default.")
    ] = None,
    cache_dir: Annotated[Path | None, typer.Option("--cache-dir", help="Where builds are kept.")] = None,
) -> ExitCode:
    """Build, list or remove the emulated card that PyTorch's CUDA build runs on."""
    from dnnmem_tune.emulator.cache import cached_builds, clean_cache, default_cache_folder, ensure_build
    from dnnmem_tune.emulator.installation import find_installation
    from dnnmem_tune.frontends.torch.emulated.opening import Unavailable, find_emulation
    from dnnmem_tune.units import format_bytes

    folder = cache_dir or default_cache_folder()
    match action:
        case Action.CLEAN:
            number = clean_cache(folder)
            typer.echo(f"removed {number} build{'' if number == 1 else 's'} from {folder}")
        case Action.BUILD:
            with options.progress() as say:
                say("building the emulated card")
                built = ensure_build(find_installation(python), folder, compiler=compiler)
            typer.echo(f"{built.name} is ready in {built}")
        case Action.STATUS:
            match find_emulation(python, folder):
                case Unavailable(reason):
                    typer.echo(f"not available: {reason}")
                case installation:
                    typer.echo(f"available: torch {installation.version} of {installation.python}")
            for build in cached_builds(folder):
                typer.echo(f"built: {build.folder.name} ({format_bytes(build.nbytes)})")
    return ExitCode.FITS
