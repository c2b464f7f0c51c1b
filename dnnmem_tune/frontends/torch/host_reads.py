"""Where a program reads values that a trace does not have."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import PurePath

_LIBRARIES = ("/torch/", "/dnnmem_tune/", "/transformers/", "/contextlib.py", "<")


class HostReads:
    """Counts reads of device values by the line of the user's code that caused them."""

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()
        self.bounded: Counter[str] = Counter()

    def note(self) -> None:
        """Count one read at the innermost line outside torch and this package."""
        frame = sys._getframe(1)
        innermost = None
        while frame is not None:
            name = frame.f_code.co_filename
            if innermost is None and "/dnnmem_tune/" not in name:
                innermost = frame
            if not any(part in name for part in _LIBRARIES):
                self.places[f"{PurePath(name).name}:{frame.f_lineno}"] += 1
                return
            if frame.f_back is None:
                break
            frame = frame.f_back
        if innermost is not None:
            name = innermost.f_code.co_filename
            self.places[f"{PurePath(name).name}:{innermost.f_lineno}"] += 1

    def bound(self, operator: str) -> None:
        """Count one output whose size depends on values and was bounded from above."""
        self.bounded[operator] += 1
