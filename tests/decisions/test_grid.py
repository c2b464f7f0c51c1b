"""The values a search may answer with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.decisions.grid import make_grid
from dnnmem_tune.errors import UsageError


def _listed(minimum: int, maximum: int, multiple_of: int, power_of_two: bool) -> list[int]:
    return [
        value
        for value in range(minimum, maximum + 1)
        if value % multiple_of == 0 and (not power_of_two or value & (value - 1) == 0)
    ]


@given(
    minimum=st.integers(1, 60),
    width=st.integers(0, 80),
    multiple_of=st.integers(1, 12),
    power_of_two=st.booleans(),
)
def test_grid_holds_the_values_that_meet_the_conditions(
    minimum: int, width: int, multiple_of: int, power_of_two: bool
) -> None:
    """Equal to listing them, or an error where the list is empty."""
    expected = _listed(minimum, minimum + width, multiple_of, power_of_two)
    try:
        grid = make_grid(
            minimum=minimum, maximum=minimum + width, multiple_of=multiple_of, power_of_two=power_of_two
        )
    except UsageError:
        assert expected == []
        return

    assert [grid.value(index) for index in range(grid.length)] == expected
    assert grid.last == expected[-1]


@given(minimum=st.integers(1, 40), step=st.integers(1, 9), doubling=st.booleans(), value=st.integers(0, 500))
def test_index_below_is_the_last_value_not_above(minimum: int, step: int, doubling: bool, value: int) -> None:
    """Equal to counting them."""
    grid = make_grid(minimum=minimum, maximum=400, multiple_of=1 if doubling else step, power_of_two=doubling)
    values = [grid.value(index) for index in range(grid.length)]

    assert grid.index_below(value) == sum(1 for candidate in values if candidate <= value) - 1


def test_a_million_million_values_cost_nothing() -> None:
    """Nothing is listed."""
    grid = make_grid(minimum=1, maximum=10**12)

    assert (grid.length, grid.last, grid.index_below(10**13)) == (10**12, 10**12, 10**12 - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"minimum": 8, "maximum": 4}, "maximum=4 is below minimum=8; pass maximum >= minimum"),
        ({"minimum": 0, "maximum": 4}, "minimum must be a whole number of at least 1, got 0"),
        ({"minimum": 1, "maximum": True}, "maximum must be a whole number of at least 1, got True"),
        (
            {"minimum": 1, "maximum": 4, "multiple_of": -2},
            "multiple_of must be a whole number of at least 1, got -2",
        ),
        ({"minimum": 5, "maximum": 7, "multiple_of": 4}, "no multiple of 4 lies between 5 and 7"),
        ({"minimum": 5, "maximum": 7, "power_of_two": True}, "no power of two lies between 5 and 7"),
        (
            {"minimum": 1, "maximum": 64, "multiple_of": 6, "power_of_two": True},
            "no power of two is a multiple of 6; drop one of the two conditions",
        ),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(arguments: dict[str, int], message: str) -> None:
    """With one line that says which."""
    with pytest.raises(UsageError) as error:
        make_grid(**arguments)  # type: ignore[arg-type]  # bool among ints is the point

    assert str(error.value) == f"largest batch_size: {message}"
