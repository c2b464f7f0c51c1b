"""Bad input is refused in one line, before anything is started."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dnnmem_tune.api.arguments import SafetyMargin, batch_size_of, plain_params, safety_margin
from dnnmem_tune.errors import UsageError


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None, math.nan])
def test_batch_size_that_is_no_whole_number_from_one_is_refused(value: object) -> None:
    """True is 1 and 1.5 is 1 to a careless cast; both are mistakes."""
    with pytest.raises(UsageError) as error:
        batch_size_of(value)

    assert str(error.value) == f"batch_size must be a whole number of at least 1, got {value!r}"


def test_batch_size_beyond_what_kernels_index_is_refused() -> None:
    """10**12 samples would overflow sizes long before a card."""
    with pytest.raises(UsageError) as error:
        batch_size_of(10**12)

    assert str(error.value) == "batch_size must be at most 2147483647, got 1000000000000"


def test_whole_numbers_of_numpy_are_batch_sizes() -> None:
    """A sampler hands them out."""
    assert batch_size_of(np.int64(32)) == 32
    assert type(batch_size_of(np.int64(32))) is int


def test_params_become_plain_values() -> None:
    """GIVEN numpy numbers and tuples THEN the worker gets Python's own."""
    plain = plain_params(
        {
            "width": np.int32(4),
            "rate": np.float64(0.5),
            "flag": np.bool_(True),
            "sizes": (1, 2),
            "more": {"a": None},
        }
    )

    assert plain == {"width": 4, "rate": 0.5, "flag": True, "sizes": [1, 2], "more": {"a": None}}
    assert [type(plain[name]) for name in ("width", "rate", "flag")] == [int, float, bool]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rate": math.nan}, "params['rate'] is nan; pass a finite number"),
        ({"sizes": [1, math.inf]}, "params['sizes'][1] is inf; pass a finite number"),
        ({"batch_size": 4}, "params must not hold 'batch_size': the workload gets it as an argument of its own"),
        ({"device": "cpu"}, "params must not hold 'device': the workload gets it as an argument of its own"),
        ({"a b": 4}, "params: 'a b' cannot be the name of an argument of the workload"),
        ({"more": {1: 2}}, "params['more'] has the key 1; keys of a dictionary must be strings"),
        (
            {"loss": print},
            "params['loss'] is a builtin_function_or_method; hyperparameters travel to another process: "
            "pass numbers, strings, True, False, None, or lists and dictionaries of those",
        ),
        ("width=4", "params must be a dictionary of hyperparameters, got str"),
    ],
)
def test_params_that_cannot_travel_are_refused(params: Any, message: str) -> None:
    """With the name of the one that is wrong."""
    with pytest.raises(UsageError) as error:
        plain_params(params)

    assert str(error.value) == message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, SafetyMargin()),
        (0, SafetyMargin()),
        (0.1, SafetyMargin(fraction=0.1)),
        ("0.1", SafetyMargin(fraction=0.1)),
        ("10%", SafetyMargin(fraction=0.1)),
        ("512MiB", SafetyMargin(nbytes=512 << 20)),
        (4096, SafetyMargin(nbytes=4096)),
        ("4096", SafetyMargin(nbytes=4096)),
    ],
)
def test_safety_is_a_share_or_a_size(value: float | str | None, expected: SafetyMargin) -> None:
    """Every way in which people write it."""
    assert safety_margin(value) == expected


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, math.inf, True, "100%", "-1", "nan", "much", ""])
def test_safety_that_cannot_be_meant_is_refused(value: float | str) -> None:
    """1.5 is neither a share nor a whole number of bytes."""
    with pytest.raises(UsageError) as error:
        safety_margin(value)

    assert str(error.value) == (
        f"a safety margin is a share from 0 to below 1 (0.05 or '5%') or a size such as '512MiB', got {value!r}"
    )
