from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.decisions.space import Choices, Numbers, SearchSpace
from dnnmem_tune.errors import UsageError
from dnnmem_tune.guard import FormulaTracers, MemoryGuard
from dnnmem_tune.guard.space_file import parse_space, read_space, write_space
from dnnmem_tune.guard.survey import survey


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Width times batch; odd widths do not run."""
    if params["width"] % 2:
        raise ValueError("the width must be even")
    return int(params["width"]) * batch_size


def make_guard(limit: int = 100) -> MemoryGuard:
    """Return a guard over the formula."""
    return MemoryGuard(tracers=[FormulaTracers(peak, limit)])


SPACE = SearchSpace(
    parameters={
        "batch_size": Numbers(low=1, high=10, whole=True),
        "width": Numbers(low=2, high=20, step=2, whole=True),
        "rate": Numbers(low=1e-4, high=1e-1, log=True),
    }
)


def test_a_survey_traces_each_architecture_once_and_two_ends_of_the_rates() -> None:
    """Ten widths, and two traces that show the rate to be inert; 100 verdicts in all."""
    guard = make_guard()
    report = survey(guard, SPACE)

    fitting = sum(width * batch <= 100 for width in range(2, 21, 2) for batch in range(1, 11))
    assert report.share_fitting == pytest.approx(fitting / 100)
    assert guard.counts.num_traces == 10 + 2
    assert [driver.name for driver in report.drivers if driver.inert] == ["rate"]


def test_a_survey_gives_the_largest_batch_of_each_configuration() -> None:
    """Of the card, and of the space, which may end before."""
    surveyed = survey(make_guard(), SPACE).configurations

    assert [(found.params["width"], found.largest_batch, found.largest_in_space) for found in surveyed[:2]] == [
        (2, 50, 10),
        (4, 25, 10),
    ]
    assert (surveyed[-1].largest_batch, surveyed[-1].largest_in_space) == (5, 5)


def test_what_does_not_run_is_unknown_with_its_reason() -> None:
    """A width that the model refuses is no question of memory."""
    space = SearchSpace(parameters={"batch_size": Choices((1, 2)), "width": Choices((2, 3))})

    report = survey(make_guard(), space)

    assert report.share_unknown == 0.5
    assert report.reasons_unknown == ("the formula raised ValueError: the width must be even",)
    assert report.configurations[1].largest_batch is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_configurations": 0}, "survey: num_configurations must be a whole number of at least 1, got 0"),
        ({"num_batch_sizes": True}, "survey: num_batch_sizes must be a whole number of at least 1, got True"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    """Before anything is traced."""
    with pytest.raises(UsageError, match=message):
        survey(make_guard(), SPACE, **options)


def test_a_guard_with_another_name_for_the_batch_size_is_refused() -> None:
    """Every verdict would be unknown otherwise."""
    space = SearchSpace(parameters={"batch": Choices((1,))}, batch_param="batch")

    with pytest.raises(UsageError, match="the space calls the batch size 'batch' and the guard 'batch_size'"):
        survey(make_guard(), space)


TEXT = """
workload = "train.py:build"
gpu = "24GiB"
batch_param = "batch"

[params]
precision = "bf16"

[space]
batch = { low = 128, high = 2048, step = 128 }
lr = { low = 1e-5, high = 1e-1, log = true }
heads = [4, 6, 8]
"model/width" = { low = 16, high = 512 }
dropout = { low = 0, high = 0.5 }
"""


def test_a_space_is_read_from_a_file(tmp_path: Path) -> None:
    """Whole numbers stay whole; a range with a fraction in it is continuous."""
    (tmp_path / "space.toml").write_text(TEXT)

    file = read_space(tmp_path / "space.toml")

    assert (file.workload, file.gpu) == ("train.py:build", "24GiB")
    assert file.space == SearchSpace(
        parameters={
            "batch": Numbers(low=128, high=2048, step=128, whole=True),
            "lr": Numbers(low=1e-5, high=1e-1, log=True),
            "heads": Choices((4, 6, 8)),
            "model/width": Numbers(low=16, high=512, whole=True),
            "dropout": Numbers(low=0, high=0.5),
        },
        constants={"precision": "bf16"},
        batch_param="batch",
    )


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    """The reduced space of one command is the space of the next."""
    (tmp_path / "space.toml").write_text(TEXT)
    space = read_space(tmp_path / "space.toml").space
    (tmp_path / "copy.toml").write_text(write_space(space))

    assert read_space(tmp_path / "copy.toml").space == space


@pytest.mark.parametrize("path", sorted(Path("configs/spaces").glob("*.toml")), ids=lambda path: path.name)
def test_the_sample_spaces_can_be_read(path: Path) -> None:
    """They name a workload that exists."""
    file = read_space(path)

    assert file.workload is not None
    assert Path(file.workload.partition(":")[0]).exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, r"there is no table \[space\]"),
        ({"space": {"lr": [1]}}, "the space has no parameter 'batch_size' for the batch size; it has lr"),
        ({"space": {"batch_size": 3}}, "parameter 'batch_size' is 3; write a list of values, or"),
        (
            {"space": {"batch_size": {"low": 1, "high": 2, "steps": 3}}},
            "parameter 'batch_size': unknown key 'steps'",
        ),
        ({"space": {"batch_size": {"low": 3, "high": 2}}}, "parameter 'batch_size': a range goes from a low to"),
        ({"spaces": {}}, "unknown key 'spaces'; known are workload, gpu"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(document: dict[str, Any], message: str) -> None:
    """The message names the parameter and what to write."""
    with pytest.raises(UsageError, match=message):
        parse_space(document)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """With its name."""
    (tmp_path / "broken.toml").write_text("[space")

    with pytest.raises(UsageError, match=r"broken\.toml is no TOML"):
        read_space(tmp_path / "broken.toml")
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read \(No such file or directory\)"):
        read_space(tmp_path / "missing.toml")
