"""Sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import GIB, MIB, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("24GiB", 24 * GIB),
        ("24G", 24 * GIB),
        (" 1.5 g ", 3 * GIB // 2),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 * MIB),
    ],
)
def test_a_size_has_the_unit_that_is_written(text: str, nbytes: int) -> None:
    """Binary units are the field's; decimal ones are meant where a B stands alone behind the prefix."""
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "1e9", "12 parsecs", "1.2.3G", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """The message repeats what was given and shows what is wanted."""
    with pytest.raises(UsageError, match="is not a size; write a number and a unit, such as 24GiB"):
        parse_bytes(text)


def test_a_size_of_nothing_is_refused() -> None:
    """No device and no margin of zero bytes was ever meant."""
    with pytest.raises(UsageError, match="at least one byte, got '0G'"):
        parse_bytes("0G")


@given(nbytes=st.integers(0, 1 << 50))
def test_the_sign_of_a_shortfall_is_kept(nbytes: int) -> None:
    """Headroom is negative when a job exceeds the device."""
    text = format_bytes(-nbytes)
    assert text == ("0 B" if nbytes == 0 else f"-{format_bytes(nbytes)}")
