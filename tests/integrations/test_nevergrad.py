"""Nevergrad on real optimizers."""

from collections.abc import Mapping
from typing import Any

import pytest

ng = pytest.importorskip("nevergrad")

from dnnmem_tune.errors import UsageError  # noqa: E402
from dnnmem_tune.guard import FormulaTracers, MemoryGuard  # noqa: E402
from dnnmem_tune.integrations.nevergrad import FitsGpu, ask_fitting, hyperparameters  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::Warning:nevergrad.*")

LIMIT = 1000


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Return width times batch."""
    return int(params["width"]) * batch_size


def make_guard(limit: int = LIMIT) -> MemoryGuard:
    """Return a guard over the formula."""
    return MemoryGuard(tracers=[FormulaTracers(peak, limit)])


def loss(params: Mapping[str, Any]) -> float:
    """Larger is better, so that the optimum lies at the limit."""
    return -float(peak(params, params["batch_size"]))


def space(kind: str) -> Any:
    """Return one space as a dictionary or as keyword arguments."""
    params = {
        "width": ng.p.Scalar(lower=1, upper=200).set_integer_casting(),
        "batch_size": ng.p.TransitionChoice([1, 4, 16, 64]),
    }
    return ng.p.Dict(**params) if kind == "dict" else ng.p.Instrumentation(**params)


@pytest.mark.parametrize("kind", ["dict", "instrumentation"])
def test_only_what_fits_is_handed_out(kind: str) -> None:
    """With the constraint Nevergrad finds most by itself, and the loop replaces the rest."""
    guard = make_guard()
    parametrization = space(kind)
    parametrization.random_state.seed(0)
    parametrization.register_cheap_constraint(FitsGpu(guard))
    optimizer = ng.optimizers.OnePlusOne(parametrization, budget=40)

    launched = []
    for _ in range(40):
        candidate = ask_fitting(optimizer, guard, worst_loss=0.0)
        assert candidate is not None
        params = hyperparameters(candidate.value)
        launched.append(params)
        optimizer.tell(candidate, loss(params))

    assert all(peak(params, params["batch_size"]) <= LIMIT for params in launched)
    assert min(loss(params) for params in launched) < -500


def test_where_nothing_fits_the_loop_ends() -> None:
    """It would ask for ever otherwise."""
    optimizer = ng.optimizers.RandomSearch(space("dict"), budget=10)

    assert ask_fitting(optimizer, make_guard(0), worst_loss=0.0, max_asks=5) is None
    assert optimizer.num_tell == 5


def test_the_constraint_is_the_headroom_as_a_share() -> None:
    """At least zero where it fits, as Nevergrad has it."""
    fits = FitsGpu(make_guard())

    assert fits({"width": 50, "batch_size": 10}) == pytest.approx(0.5)
    assert fits({"width": 200, "batch_size": 10}) == pytest.approx(-1.0)


def test_values_without_names_are_refused() -> None:
    """The message says what to use."""
    with pytest.raises(UsageError, match=r"the value \(1, 2\) has no names for its parameters; use ng\.p\.Dict"):
        hyperparameters((1, 2))
