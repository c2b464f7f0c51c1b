"""FLAML on the real flaml.tune."""

from collections.abc import Mapping
from typing import Any

import pytest

tune = pytest.importorskip("flaml.tune")

from dnnmem_tune.guard import FormulaTracers, MemoryGuard  # noqa: E402
from dnnmem_tune.integrations.flaml import memory_constraint  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LIMIT = 1000


def peak(params: Mapping[str, Any], batch_size: int) -> int:
    """Return width times batch."""
    return int(params["width"]) * batch_size


def test_one_line_keeps_a_search_within_the_gpu() -> None:
    """The best values lie beyond the limit, so that a search without the line goes there."""
    guard = MemoryGuard(tracers=[FormulaTracers(peak, LIMIT)])
    launched = []

    def train(config: dict[str, Any]) -> dict[str, float]:
        launched.append(config)
        return {"loss": -float(config["width"] * config["batch_size"])}

    space = {"width": tune.randint(1, 200), "batch_size": tune.choice([1, 4, 16, 64])}
    options: dict[str, Any] = {"config": space, "metric": "loss", "mode": "min", "num_samples": 40, "verbose": 0}

    tune.run(train, **options)
    assert any(peak(config, config["batch_size"]) > LIMIT for config in launched)

    launched.clear()
    result = tune.run(train, config_constraints=[memory_constraint(guard)], **options)

    assert len(launched) > 5
    assert all(peak(config, config["batch_size"]) <= LIMIT for config in launched)
    assert peak(result.best_config, result.best_config["batch_size"]) <= LIMIT
