import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.decisions.space import Choices, Numbers, SearchSpace, draw
from dnnmem_tune.decisions.space_report import SurveyedConfiguration, report_on
from dnnmem_tune.decisions.verdict import Verdict
from dnnmem_tune.errors import UsageError

SPACE = SearchSpace(
    parameters={
        "batch_size": Choices((1, 2, 4, 8)),
        "width": Numbers(low=16, high=256, step=16, whole=True),
        "rate": Numbers(low=1e-5, high=1e-1, log=True),
    }
)


def surveyed(width: int, rate: float, limit: int = 512) -> SurveyedConfiguration:
    """Return a configuration of which a batch takes width times batch bytes."""
    verdicts = {}
    for batch in (1, 2, 4, 8):
        kind = Verdict.fits if width * batch <= limit else Verdict.exceeds
        verdicts[batch] = kind(peak_bytes=width * batch, limit_bytes=limit)
    return SurveyedConfiguration(
        params={"width": width, "rate": rate}, verdicts=verdicts, largest_batch=limit // width
    )


@given(
    share=st.floats(0, 1, exclude_max=True),
    low=st.integers(1, 50),
    span=st.integers(0, 500),
    step=st.integers(1, 40),
)
def test_whole_numbers_are_drawn_from_their_grid(share: float, low: int, span: int, step: int) -> None:
    """A value off the grid would be a configuration that the search never proposes."""
    value = draw(Numbers(low=low, high=low + span, step=step, whole=True), share)

    assert isinstance(value, int)
    assert low <= value <= low + span
    assert (value - low) % step == 0


@given(share=st.floats(0, 1, exclude_max=True))
def test_logarithmic_ranges_are_drawn_evenly_by_magnitude(share: float) -> None:
    """Half of the draws lie below the geometric mean."""
    value = draw(Numbers(low=1e-4, high=1e-2, log=True), share)

    assert math.log10(value) == pytest.approx(-4 + 2 * share)


def test_a_small_discrete_space_is_listed_completely() -> None:
    """Of 16 widths 16 can be judged; a draw would miss some and repeat others."""
    configurations = SPACE.configurations(20, seed=0)

    assert [params["width"] for params in configurations] == list(range(16, 257, 16))
    assert len({params["rate"] for params in configurations}) == 16


def test_a_large_space_is_drawn_and_the_draw_can_be_repeated() -> None:
    """The same seed gives the same survey."""
    configurations = SPACE.configurations(10, seed=3)

    assert len(configurations) == 10
    assert configurations == SPACE.configurations(10, seed=3)
    assert configurations != SPACE.configurations(10, seed=4)


def test_constants_are_part_of_every_configuration() -> None:
    """And a constant batch size is the only one judged."""
    space = SearchSpace(parameters={"width": Choices((1, 2))}, constants={"precision": "bf16", "batch_size": 32})

    assert space.configurations(5, seed=0) == [
        {"precision": "bf16", "width": 1},
        {"precision": "bf16", "width": 2},
    ]
    assert space.batch_sizes(8) == [32]


@pytest.mark.parametrize(
    ("batch", "limit", "expected"),
    [
        (Numbers(low=8, high=32, step=8, whole=True), 10, [8, 16, 24, 32]),
        (Numbers(low=1, high=1000, whole=True), 4, [126, 376, 625, 875]),
        (Numbers(low=1, high=256, log=True, whole=True), 4, [2, 8, 32, 128]),
        (Choices((64, 32)), 1, [64, 32]),
    ],
)
def test_batch_sizes_stand_for_equal_shares_of_the_draws(
    batch: Choices | Numbers, limit: int, expected: list[int]
) -> None:
    """All of them where they are few, else the middle of each share."""
    assert SearchSpace(parameters={"batch_size": batch}).batch_sizes(limit) == expected


def test_the_share_that_fits_comes_with_an_interval() -> None:
    """By hand: width 64 fits at all four batch sizes, 128 at three, 256 at two: 9 of 12."""
    report = report_on(SPACE, [surveyed(64, 0.1), surveyed(128, 0.1), surveyed(256, 0.1)])

    assert report.share_fitting == pytest.approx(9 / 12)
    low, high = report.interval
    assert 0 < low < 9 / 12 < high <= 1
    assert report.share_unknown == 0


def test_an_interval_is_not_empty_where_all_shares_are_equal() -> None:
    """Three configurations that do not fit do not prove that none does."""
    report = report_on(SPACE, [surveyed(256, 0.1, limit=1)] * 3)

    assert report.share_fitting == 0
    assert report.interval[0] == 0
    assert 0.3 < report.interval[1] < 0.7


def test_what_drives_memory_is_told_from_what_does_not() -> None:
    """Peak is width times batch: both explain it, and the rate explains nothing."""
    widths, rates = range(16, 257, 16), (1e-5, 1e-3, 1e-1, 1e-4, 1e-2)
    report = report_on(SPACE, [surveyed(width, rates[width // 16 % 5]) for width in widths])
    effects = {driver.name: driver.effect for driver in report.drivers}

    # By hand: the variance of ln 1, 2, 4, 8 is 0.601, that of ln 16, 32, ..., 256 is 0.612 (population).
    assert effects["batch_size"] == pytest.approx(0.601 / (0.601 + 0.612), abs=0.02)
    assert 0.35 < effects["width"] <= 0.612 / (0.601 + 0.612) + 0.01
    assert effects["rate"] < 0.1
    assert report.drivers[-1].name == "rate"


def test_a_parameter_that_traces_have_shown_to_be_inert_explains_nothing() -> None:
    """Proof beats what chance suggests in few configurations."""
    report = report_on(SPACE, [surveyed(16 * index, 10.0**-index) for index in range(1, 6)], inert=["rate"])
    (rate,) = (driver for driver in report.drivers if driver.name == "rate")

    assert rate.inert
    assert rate.effect == 0


def test_values_at_which_nothing_fits_are_cut() -> None:
    """Above 128 nothing fits even with one sample; the batch sizes above 8 were never judged to fit."""
    report = report_on(SPACE, [surveyed(width, 0.1, limit=128) for width in range(16, 257, 16)])

    assert report.reduced.parameters["width"] == Numbers(low=16, high=128, step=16, whole=True)
    assert report.reduced.parameters["batch_size"] == Choices((1, 2, 4, 8))
    assert report.reduced.parameters["rate"] == SPACE.parameters["rate"]


def test_little_evidence_cuts_nothing() -> None:
    """One configuration that fits nowhere may be chance: the range stays."""
    report = report_on(SPACE, [surveyed(16, 0.1, limit=128), surveyed(256, 0.1, limit=128)])

    assert report.reduced.parameters["width"] == SPACE.parameters["width"]


def test_unknown_is_counted_apart() -> None:
    """Heads that do not divide a width are no memory verdict."""
    broken = SurveyedConfiguration(
        params={"width": 48, "rate": 0.1},
        verdicts={1: Verdict.unknown("heads must divide width")},
        largest_batch=None,
    )
    report = report_on(SPACE, [surveyed(64, 0.1), broken])

    assert report.share_fitting == 1
    assert report.share_unknown == pytest.approx(1 / 5)
    assert report.reasons_unknown == ("heads must divide width",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numbers(low=2, high=1), "a range goes from a low to a high number, got 2 to 1"),
        (lambda: Numbers(low=0, high=1, log=True), "a logarithmic range starts above 0, got low=0"),
        (lambda: Numbers(low=0, high=1, step=0), "the step of a range is above 0, got 0"),
        (lambda: Choices(()), "a choice needs at least one value"),
        (lambda: SearchSpace(parameters={"b": Choices((1,))}).batch, "the space has no parameter 'batch_size'"),
        (lambda: report_on(SPACE, []), "a survey needs at least one configuration"),
    ],
)
def test_spaces_that_cannot_be_meant_are_refused(make: object, message: str) -> None:
    """Before anything is traced."""
    assert callable(make)
    with pytest.raises(UsageError, match=message):
        make()
