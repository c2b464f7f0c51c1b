"""Where the peak was: the user's own line, from PyTorch's allocation history."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Place

_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "/lib/python3", "/dnnmem_tune/frontends/", "<frozen ")


@dataclass(frozen=True, slots=True)
class Backward:
    """One call of the autograd engine: its thread has no Python frames of its own."""

    start_us: int
    stop_us: int
    place: Place | None


def place_of_peak(history: Sequence[Mapping[str, Any]], backward: Sequence[Backward]) -> Place | None:
    """Return the line that asked for the request which made the peak.

    Args:
        history: Entries of one card, with Python frames.
        backward: Calls of the autograd engine.

    """
    current = peak = 0
    entry_at_peak: Mapping[str, Any] | None = None
    for entry in history:
        if entry["action"] == "alloc":
            current += entry["size"]
            if current > peak:
                peak, entry_at_peak = current, entry
        elif entry["action"] == "free_completed":
            current -= entry["size"]
    if entry_at_peak is None:
        return None
    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in entry_at_peak.get("frames", ())]
    place = users_place(frames)
    if place is not None:
        return place
    time = entry_at_peak["time_us"]
    return next((call.place for call in backward if call.start_us <= time <= call.stop_us), None)


def place_here() -> Place | None:
    """Return the user's line that is running in this thread."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return users_place(frames)


def users_place(frames: Iterable[tuple[str, int, str]]) -> Place | None:
    """Return the innermost of ``frames``, innermost first, that is no library's."""
    for file, line, function in frames:
        if not file.startswith("<") and not any(part in file for part in _NOT_THE_USERS):
            source = linecache.getline(file, line).strip()
            return Place(file=file, line=line, function=function, source=source)
    return None
