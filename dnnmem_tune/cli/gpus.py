"""``dnnmem gpus``: the cards of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command


@command
def gpus(
    name: Annotated[str | None, typer.Argument(help="Only cards whose name or alias holds this.")] = None,
    as_json: options.JsonOption = False,
) -> ExitCode:
    """List the GPUs of the catalogue, with the memory that CUDA reports for each."""
    from dnnmem_tune.config import find_device, list_devices

    devices = list_devices()
    if name is not None:
        wanted = _fold(name)
        devices = tuple(
            device for device in devices if any(wanted in _fold(known) for known in (device.name, *device.aliases))
        ) or (find_device(name),)
    if as_json:
        from dnnmem_tune.reporting.document import devices_document

        options.print_json(devices_document(devices))
    else:
        from dnnmem_tune.reporting.text import TextReport

        TextReport().devices(devices)
    return ExitCode.FITS


def _fold(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
