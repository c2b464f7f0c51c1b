"""Sizes as people write them, and as people read them. All sizes elsewhere are ``int`` bytes."""

from __future__ import annotations

import re

from dnnmem_tune.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SUFFIXES = {
    "": 1, "B": 1,
    "K": KIB, "KIB": KIB, "M": MIB, "MIB": MIB, "G": GIB, "GIB": GIB, "T": 1 << 40, "TIB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Return the number of bytes that ``text`` names.

    Args:
        text: A number with an optional unit: ``24GiB``, ``24G`` (both binary), ``24GB``
            (decimal), ``512M``, or plain bytes.

    Returns:
        Bytes, rounded down.

    Raises:
        UsageError: If the text is no size, or the size is zero.

    Example:
        >>> parse_bytes("1.5GiB")
        1610612736
        >>> parse_bytes("24GB")
        24000000000

    """
    match = _SIZE.fullmatch(text)
    factor = _SUFFIXES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a size; write a number and a unit, such as 24GiB, 512M or 16GB")
    nbytes = int(float(match[1]) * factor)
    if nbytes < 1:
        raise UsageError(f"a size must be at least one byte, got {text!r}")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """Return ``nbytes`` in the unit that a reader compares with a GPU's memory.

    Args:
        nbytes: Bytes; may be negative (a shortfall).

    Returns:
        Bytes below 1 KiB, then KiB, MiB, and GiB with two decimals from 1 GiB on.

    Example:
        >>> format_bytes(16 * GIB), format_bytes(-3 * MIB), format_bytes(12)
        ('16.00 GiB', '-3.0 MiB', '12 B')

    """
    size = abs(nbytes)
    if size >= GIB:
        return f"{nbytes / GIB:.2f} GiB"
    if size >= MIB:
        return f"{nbytes / MIB:.1f} MiB"
    if size >= KIB:
        return f"{nbytes / KIB:.1f} KiB"
    return f"{nbytes} B"
