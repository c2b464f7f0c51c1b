"""Which frames of a stack are the user's own code."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import FrameType

_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *(f"{_PATHS[kind]}/" for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).resolve().parents[2]}/",
)
"""Installed packages, the standard library, and this package."""


def is_user_code(filename: str) -> bool:
    """Whether a file is neither a library's nor this package's."""
    return not filename.startswith(("<", *_LIBRARIES)) and "/site-packages/" not in filename


def user_line(depth: int = 1) -> str:
    """Return ``file.py:12`` of the innermost frame of user code, or of the caller where there is none.

    Args:
        depth: Frames to leave out, this function's caller counted as 1.

    """
    frames = list(_frames(sys._getframe(depth)))
    frame = next((frame for frame in frames if is_user_code(frame.f_code.co_filename)), frames[0])
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
