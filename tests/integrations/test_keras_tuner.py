"""KerasTuner on real models; the search of keras-tuner#989, which an oversized model used to end."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
keras_tuner = pytest.importorskip("keras_tuner")
np = pytest.importorskip("numpy")

from dnnmem_tune.guard import FormulaTracers, MemoryGuard  # noqa: E402
from dnnmem_tune.integrations.keras_tuner import OversizedModelError, fitting, skip_oversized  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LIMIT = 64 * 8


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Return units times batch."""
    return int(params["units"]) * batch_size


def make_guard() -> MemoryGuard:
    """Return a guard that lets at most 64 units through; all trials have a batch of 8."""
    return MemoryGuard(tracers=[FormulaTracers(peak, LIMIT)], params={"batch_size": 8})


def build(hp: Any) -> Any:
    """Build a model of which most of the space does not fit."""
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(hp.Int("units", 16, 512, step=16)), keras.layers.Dense(1)]
    )
    model.compile(optimizer="sgd", loss="mse")
    return model


def train(tuner: Any) -> None:
    """Search on a few numbers."""
    inputs, targets = np.ones((8, 4)), np.ones((8, 1))
    tuner.search(inputs, targets, epochs=1, batch_size=8, validation_data=(inputs, targets), verbose=0)


def trials(tuner: Any) -> list[Any]:
    """Return the trials that were made."""
    return list(tuner.oracle.trials.values())


def test_oversized_models_are_skipped_and_all_trials_are_run(tmp_path: Path) -> None:
    """A skip counts neither as a failure nor as a trial; three in a row used to end the search."""
    guard = make_guard()
    tuner = keras_tuner.RandomSearch(
        fitting(build, guard), objective="val_loss", max_trials=4, seed=0, directory=tmp_path
    )
    skipped = skip_oversized(tuner, guard)

    train(tuner)

    assert [trial.status for trial in trials(tuner)] == ["COMPLETED"] * 4
    assert all(trial.hyperparameters.values["units"] <= 64 for trial in trials(tuner))
    assert len(skipped) > 3
    assert all(values["units"] > 64 for values in skipped)


def test_the_build_function_refuses_by_bytes_before_the_model_is_built(tmp_path: Path) -> None:
    """Without the oracle's help the trial fails with the reason, and is not retried."""
    built = []

    def noted(hp: Any) -> Any:
        built.append(dict(hp.values))
        return build(hp)

    tuner = keras_tuner.RandomSearch(
        fitting(noted, make_guard()),
        objective="val_loss",
        max_trials=6,
        seed=0,
        max_consecutive_failed_trials=10,
        directory=tmp_path,
    )
    train(tuner)

    failed = [trial for trial in trials(tuner) if trial.status == "FAILED"]
    assert failed
    assert all(trial.hyperparameters.values["units"] > 64 for trial in failed)
    assert "above the limit of 512 B" in failed[0].message
    assert all(values.get("units", 0) <= 64 for values in built)


def test_defaults_that_do_not_fit_do_not_stop_the_tuner_from_finding_its_space() -> None:
    """KerasTuner builds once with the defaults to learn the hyperparameters; nothing is trained then."""
    hp = keras_tuner.HyperParameters()

    def large(hp: Any) -> str:
        hp.Int("units", 256, 512)
        return "a model"

    assert fitting(large, make_guard())(hp) == "a model"
    with pytest.raises(OversizedModelError, match=r"not trained: .* above the limit of 512 B"):
        fitting(large, make_guard())(hp)


def test_a_grid_ends(tmp_path: Path) -> None:
    """What does not fit is passed over, and the end of the grid ends the search."""
    guard = make_guard()

    def small_grid(hp: Any) -> Any:
        hp.Choice("units", [16, 64, 256])
        return build(hp)

    tuner = keras_tuner.GridSearch(fitting(small_grid, guard), objective="val_loss", directory=tmp_path)
    skip_oversized(tuner, guard)
    train(tuner)

    statuses = {trial.hyperparameters.values["units"]: trial.status for trial in trials(tuner)}
    assert statuses == {16: "COMPLETED", 64: "COMPLETED"}


def test_a_space_in_which_nothing_fits_ends(tmp_path: Path) -> None:
    """With a warning instead of an endless loop."""
    guard = MemoryGuard(tracers=[FormulaTracers(peak, 1)], params={"batch_size": 8})
    tuner = keras_tuner.RandomSearch(
        fitting(build, guard), objective="val_loss", max_trials=4, seed=0, directory=tmp_path
    )
    skip_oversized(tuner, guard, max_tries=5)

    train(tuner)

    assert trials(tuner) == []
