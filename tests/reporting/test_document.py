"""The JSON of an answer: documented, complete, and free of NaN."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.decisions.accumulation import plan_accumulation
from dnnmem_tune.decisions.batch_size import CannotRun, Outcome, largest_batch
from dnnmem_tune.decisions.comparison import ComparedDevice, Comparison
from dnnmem_tune.decisions.remedies import Change, Remedy
from dnnmem_tune.decisions.verdict import Verdict, verdict_of
from dnnmem_tune.estimate.estimator import Estimator
from dnnmem_tune.estimate.report import MemoryEstimate
from dnnmem_tune.ir.trace import Coverage
from dnnmem_tune.reporting.document import (
    batch_size_document,
    comparison_document,
    devices_document,
    estimate_document,
)
from dnnmem_tune.units import GIB, MIB
from tests.builders import device, job_trace

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "json.md"
CARD = device(context_uncertainty_bytes=10 * MIB)
REMEDY = Remedy(
    change=Change(text="a larger card", gpu="A100-80GB"), verdict=Verdict.fits(peak_bytes=MIB, limit_bytes=GIB)
)


def _estimate(activation_bytes: int = 200 * MIB, coverage: Coverage | None = None) -> MemoryEstimate:
    trace = job_trace(weight_bytes=100 * MIB, activation_bytes=activation_bytes, coverage=coverage)
    return Estimator(trace, CARD).at(1)


def _probe(value: int) -> Outcome:
    if value == 1:
        return CannotRun("expected more than one value per channel")
    kind = Verdict.fits if value <= 5 else Verdict.exceeds
    return kind(peak_bytes=value * 200 * MIB, limit_bytes=GIB)


def _documents() -> dict[str, dict[str, Any]]:
    estimate = _estimate()
    result = largest_batch(_probe)
    compared = ComparedDevice(device=CARD, estimate=estimate, verdict=verdict_of(estimate), largest=result)
    return {
        "estimate": estimate_document(estimate, workload="train.py", params={"width": 4}, remedies=[REMEDY]),
        "max_batch_size": batch_size_document(result, CARD, workload="train.py", params={}, remedies=[REMEDY]),
        "compare": comparison_document(
            Comparison(batch_size=None, devices=(compared,)), workload="train.py", params={}
        ),
        "gpus": devices_document([CARD]),
    }


def _keys(value: Any) -> set[str]:
    """Return every key at any depth, but for those that are data: names of modules, hyperparameters, operators."""
    if isinstance(value, list):
        return set().union(*map(_keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    named = ("params", "categories", "modules", "unknown_operators", "host_reads", "bounded")
    return set(value) | set().union(*(_keys(item) for key, item in value.items() if key not in named), set())


@pytest.mark.parametrize("kind", ["estimate", "max_batch_size", "compare", "gpus"])
def test_every_key_is_documented(kind: str) -> None:
    """A key that is not in docs/json.md does not exist for a reader."""
    documented = set(re.findall(r"`([a-z_]+)`", DOCUMENTATION.read_text(encoding="utf-8")))

    assert _keys(_documents()[kind]) - documented == set()


@pytest.mark.parametrize("kind", ["estimate", "max_batch_size", "compare", "gpus"])
def test_document_is_plain_json(kind: str) -> None:
    """Read back it is the same, and there is neither NaN nor infinity in it."""
    document = _documents()[kind]

    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["kind"], document["schema"]) == (kind, 1)


def test_parts_of_an_estimate_add_up_to_the_device_bytes() -> None:
    """A breakdown that does not add up explains nothing."""
    breakdown = _documents()["estimate"]["breakdown"]

    parts = sum(breakdown["categories"].values()) + sum(
        breakdown[part]
        for part in ("internal_fragmentation_bytes", "allocator_reservation_bytes", "context_bytes")
    )
    assert parts == breakdown["device_bytes"] == 400 * MIB


def test_interval_holds_its_reasons() -> None:
    """The context of this card is known to 10 MiB."""
    interval = _documents()["estimate"]["interval"]

    assert (interval["low_bytes"], interval["high_bytes"]) == (390 * MIB, 410 * MIB)
    assert [reason["cause"] for reason in interval["reasons"]] == ["context"]


def test_search_gives_each_look_with_its_verdict() -> None:
    """A value at which the workload does not run has no memory, and says why."""
    document = _documents()["max_batch_size"]

    assert (document["largest_batch"], document["first_too_large"], document["smallest_runnable"]) == (5, 6, 2)
    assert document["limit_bytes"] == GIB
    assert document["probes"][0] == {
        "value": 1,
        "verdict": "cannot run",
        "reason": "expected more than one value per channel",
    }
    assert {probe["value"]: probe["verdict"] for probe in document["probes"]}[6] == "exceeds"


def test_unknown_is_null_and_no_number() -> None:
    """So that no script takes it for a verdict."""
    estimate = _estimate(coverage=Coverage(unknown_operators={"aten::foo": 1}))

    document = estimate_document(estimate, workload="train.py", params={})

    assert (document["fits"], document["violation"]) == (None, None)
    assert document["coverage"]["unknown_operators"] == {"aten::foo": 1}


def test_plans_are_told_with_their_effective_batch() -> None:
    """127 samples: exactly in 127 steps of one, or 128 in two."""
    import dataclasses

    result = dataclasses.replace(largest_batch(_probe), plans=plan_accumulation(127, 100))

    plans = batch_size_document(result, CARD, workload="train.py", params={})["accumulation"]

    assert [(plan["micro_batch"], plan["steps"], plan["effective_batch"], plan["exact"]) for plan in plans] == [
        (1, 127, 127, True),
        (64, 2, 128, False),
    ]
