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
from dataclasses import dataclass, field
from pathlib import Path

from dnnmem_tune.emulator.card import Card, card_settings, missing_kernels


class Counters(ctypes.Structure):
    """What the card has seen; the layout of ``CardCounters`` in ``src/card.h``."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "launches", "mallocs", "frees", "failed_mallocs", "copies", "host_reads", "host_read_bytes",
            "products", "convolutions", "stub_calls",
        )
    ]  # fmt: skip


class Convolution(ctypes.Structure):
    """One convolution of cuDNN's; the layout and the meaning of ``Convolution`` in ``src/card.h``."""

    _fields_ = [
        ("direction", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("groups", ctypes.c_int),
        ("channels_last", ctypes.c_int),
        ("input", ctypes.c_int64 * 8),
        ("weight", ctypes.c_int64 * 8),
        ("output", ctypes.c_int64 * 8),
        ("stride", ctypes.c_int64 * 8),
    ]


_READ_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_CONVOLUTION_ANSWER = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(Convolution))
_CONVOLUTION_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Convolution))


@dataclass(slots=True)
class LoadedCard:
    """The card of this process."""

    _library: ctypes.CDLL
    _kernel_archs: tuple[str, ...]
    _cudnn_version: int
    _callbacks: dict[str, object] = field(default_factory=dict)
    """Kept alive as long as they may be called."""

    def become(self, card: Card) -> None:
        """Be another card; possible until PyTorch has touched this one.

        Raises:
            ValueError: If the stub libraries do not know one of the settings.

        """
        text = card_settings(card, kernel_archs=self._kernel_archs, cudnn_version=self._cudnn_version)
        refused = self._library.card_configure(text.encode())
        if refused:
            raise ValueError(f"the stub libraries do not know the setting {refused.decode()!r}")

    def notes(self, card: Card) -> tuple[str, ...]:
        """What to know of the card on this build of PyTorch."""
        sentence = missing_kernels(card, self._kernel_archs)
        return (sentence,) if sentence else ()

    def counters(self) -> Counters:
        """Return what the card has seen so far; the values keep counting."""
        counters: Counters = self._library.card_counters().contents
        return counters

    def peak_bytes(self, card: int = 0) -> int:
        """Return the largest number of bytes in use on one card so far, context included."""
        return int(self._library.card_peak_bytes(card))

    def watch_reads(self, observer: Callable[[int], None] | None) -> None:
        """Call ``observer`` with the number of bytes after each read of device memory by the host."""
        self._call_back("card_watch_reads", _READ_OBSERVER(observer) if observer else _READ_OBSERVER())

    def answer_convolutions(self, answer: Callable[[Convolution], int] | None) -> None:
        """Let ``answer`` say how many bytes of workspace a convolution wants; without it none does.

        PyTorch asks once for each distinct convolution and remembers the answer.
        """
        if answer is None:
            self._call_back("card_ask_convolutions", _CONVOLUTION_ANSWER())
        else:
            ask = answer
            self._call_back("card_ask_convolutions", _CONVOLUTION_ANSWER(lambda each: ask(each.contents)))

    def watch_convolutions(self, observer: Callable[[Convolution], None] | None) -> None:
        """Call ``observer`` each time a convolution runs, after its workspace was allocated."""
        if observer is None:
            self._call_back("card_watch_convolutions", _CONVOLUTION_OBSERVER())
        else:
            observe = observer
            self._call_back("card_watch_convolutions", _CONVOLUTION_OBSERVER(lambda each: observe(each.contents)))

    def _call_back(self, function: str, callback: object) -> None:
        self._callbacks[function] = callback
        getattr(self._library, function)(callback)


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
    library.card_ask_convolutions.argtypes = [_CONVOLUTION_ANSWER]
    library.card_watch_convolutions.argtypes = [_CONVOLUTION_OBSERVER]
    loaded = LoadedCard(library, tuple(manifest["kernel_archs"]), manifest["cudnn_version"])
    loaded.become(card)
    return loaded
