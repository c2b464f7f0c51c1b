"""Put the stub libraries into this process, before PyTorch is imported.

The dynamic loader matches libraries by soname, so PyTorch binds to those that are already
there and never opens NVIDIA's. Only worker processes do this. Needs nothing but Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dnnmem_tune.emulator.card import Card, card_settings


class Counters(ctypes.Structure):
    """What the card has seen; the layout of ``CardCounters`` in ``src/card.h``."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "launches", "mallocs", "frees", "failed_mallocs", "copies", "host_reads", "host_read_bytes",
            "products", "convolutions", "stub_calls", "used_bytes", "peak_used_bytes",
        )
    ]  # fmt: skip


_READ_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_uint64)


@dataclass(slots=True)
class LoadedCard:
    """The card of this process."""

    _library: ctypes.CDLL
    _kernel_archs: tuple[str, ...]
    _cudnn_version: int
    _observer: object = None

    def become(self, card: Card) -> None:
        """Be another card; possible until PyTorch has touched this one.

        Raises:
            ValueError: If the stub libraries do not know one of the settings.

        """
        text = card_settings(card, kernel_archs=self._kernel_archs, cudnn_version=self._cudnn_version)
        refused = self._library.card_configure(text.encode())
        if refused:
            raise ValueError(f"the stub libraries do not know the setting {refused.decode()!r}")

    def counters(self) -> Counters:
        """Return what the card has seen so far; the values keep counting."""
        counters: Counters = self._library.card_counters().contents
        return counters

    def peak_bytes(self, *, reset: bool = False) -> int:
        """Return the largest number of bytes in use on the first card, context included."""
        return int(self._library.card_peak_bytes(int(reset)))

    def watch_reads(self, observer: Callable[[int], None] | None) -> None:
        """Call ``observer`` with the number of bytes after each read of device memory by the host."""
        self._observer = (
            _READ_OBSERVER(observer) if observer else _READ_OBSERVER()
        )  # kept alive while it is called
        self._library.card_watch_reads(self._observer)


def load(folder: str | Path, card: Card) -> LoadedCard:
    """Make ``card`` present in this process.

    Args:
        folder: A finished build.
        card: What to be.

    Raises:
        RuntimeError: If PyTorch has been imported before.

    """
    if "torch" in sys.modules:
        raise RuntimeError("the emulated card must be loaded before torch is imported")
    folder = Path(folder)
    manifest = json.loads((folder / "build.json").read_text())
    os.environ.setdefault("TRITON_LIBCUDA_PATH", str(folder))
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    handles = [ctypes.CDLL(str(folder / soname), mode=ctypes.RTLD_GLOBAL) for soname in manifest["order"]]
    library = handles[0]
    library.card_configure.argtypes = [ctypes.c_char_p]
    library.card_configure.restype = ctypes.c_char_p
    library.card_counters.restype = ctypes.POINTER(Counters)
    library.card_peak_bytes.restype = ctypes.c_uint64
    library.card_watch_reads.argtypes = [_READ_OBSERVER]
    loaded = LoadedCard(library, tuple(manifest["kernel_archs"]), manifest["cudnn_version"])
    loaded.become(card)
    return loaded
