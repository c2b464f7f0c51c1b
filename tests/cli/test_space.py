"""``dnnmem space`` on a formula: width times batch, on a card of 100 bytes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dnnmem_tune.cli.main import make_app
from dnnmem_tune.guard import FormulaTracers
from dnnmem_tune.guard.space_file import read_space

SPACE = """
workload = "train.py:build"
gpu = "24GiB"

[space]
batch_size = [1, 2, 4]
width = { low = 10, high = 100, step = 10 }
lr = { low = 1e-5, high = 1e-1, log = true }
"""


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Return width times batch, for any value of what else there is."""
    return int(params["width"]) * batch_size


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put the formula in the place of the estimator; the limit can be changed."""
    limits = [100]
    monkeypatch.setattr(
        "dnnmem_tune.guard.guard._estimator_tracers",
        lambda workload, gpus, options: (FormulaTracers(peak, limits[0]),),
    )
    return limits


def run(tmp_path: Path, *arguments: str, text: str = SPACE) -> Result:
    """Run the command on a file with this text."""
    (tmp_path / "space.toml").write_text(text)
    return CliRunner().invoke(make_app(), ["space", str(tmp_path / "space.toml"), *arguments])


@pytest.mark.usefixtures("limit")
def test_the_report_says_share_drivers_and_what_is_left(tmp_path: Path) -> None:
    """By hand: of 30 configurations 10 fit with one sample, 5 with two, 2 with four: 17."""
    result = run(tmp_path)

    assert result.exit_code == 0, result.output
    assert "57% of the space fits" in result.output
    assert re.search(r"lr +nothing \(traced\)", result.output)
    assert "width = { low = 10, high = 100, step = 10 }" in result.output


@pytest.mark.usefixtures("limit")
def test_json_has_every_configuration_with_its_largest_batch(tmp_path: Path) -> None:
    """For a program that builds its own space from it."""
    document = json.loads(run(tmp_path, "--json").output)

    assert document["share_fitting"] == pytest.approx(17 / 30)
    assert [row["largest_batch"] for row in document["configurations"]] == [10, 5, 3, 2, 2, 1, 1, 1, 1, 1]
    assert document["reduced_space"]["batch_size"] == {"values": [1, 2, 4]}
    assert {row["parameter"]: row["inert"] for row in document["drivers"]}["lr"] is True


def test_a_space_in_which_nothing_fits_exits_with_3(tmp_path: Path, limit: list[int]) -> None:
    """As the other commands do, for scripts."""
    limit[0] = 5
    result = run(tmp_path)

    assert result.exit_code == 3
    assert "0% of the space fits" in result.output


@pytest.mark.usefixtures("limit")
def test_the_reduced_space_can_be_written(tmp_path: Path) -> None:
    """And read by the next search."""
    run(tmp_path, "--write", str(tmp_path / "reduced.toml"))

    assert read_space(tmp_path / "reduced.toml").space == read_space(tmp_path / "space.toml").space


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPACE.replace('gpu = "24GiB"', ""), "no GPU is given; pass one such as --gpu V100-16GB"),
        (SPACE.replace('workload = "train.py:build"', ""), "no workload is given"),
        (
            SPACE.replace("width", "depth"),
            "no configuration could be judged: the formula raised KeyError: 'width'",
        ),
        ("[space", "space.toml is no TOML"),
    ],
)
def test_usage_errors_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    """Exit code 2, and what to do."""
    result = run(tmp_path, text=text)

    assert result.exit_code == 2
    assert message in result.output
