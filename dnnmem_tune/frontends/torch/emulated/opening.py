"""Open a workload with the emulated recorder, and say where that works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnmem_tune.emulator.build import find_compiler
from dnnmem_tune.emulator.cache import default_cache_folder, find_build
from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.installation import Installation, find_installation
from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends.torch.emulated.client import EmulatedRecorder

if TYPE_CHECKING:
    from dnnmem_tune.frontends import Tracing


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The emulated card cannot be had here."""

    reason: str
    """One sentence, with what to do."""


def find_emulation(python: str | None = None, cache: Path | None = None) -> Installation | Unavailable:
    """Return the PyTorch that a card can be emulated for, or why there is none. Nothing is built.

    Args:
        python: Interpreter that has a CUDA build of PyTorch; the running one by default.
        cache: Folder of builds; the user's own by default.

    """
    try:
        installation = find_installation(python)
        if find_build(installation, cache or default_cache_folder()) is None:
            find_compiler()
    except DnnMemError as error:
        return Unavailable(str(error))
    return installation


def open_recorder(reference: str, tracing: Tracing, installation: Installation | None = None) -> EmulatedRecorder:
    """Return the recorder of one workload on the card that ``tracing`` describes.

    Its ``fingerprint`` names everything that a trace depends on besides the request.

    Raises:
        UnsupportedError: If there is no PyTorch that can be emulated.

    """
    options: dict[str, Any] = tracing.options
    return EmulatedRecorder(
        reference,
        card=Card(
            name=options.get("device_name", "emulated card"),
            total_bytes=tracing.total_bytes,
            context_bytes=options.get("context_bytes", 0),
            compute_capability=tracing.compute_capability,
            num_sms=tracing.num_sms,
        ),
        installation=installation or find_installation(options.get("torch_python")),
        time_limit=tracing.time_limit,
        memory_limit=tracing.memory_limit,
    )
