"""The real worker on the real MXNet: what it takes, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.errors import DnnMemError, MissingPackageError, TraceError, UsageError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.client import MxnetRecorder
from dnnmem_tune.ir.trace import MemoryTrace

Open = Callable[..., MxnetRecorder]


def _request(workload: str, batch_size: int = 8, **params: Any) -> RecordRequest:
    return RecordRequest(workload=workload, batch_size=batch_size, params=params)


SYMBOL = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "weight", "inputs": []},
        {"op": "null", "name": "bias", "inputs": []},
        {
            "op": "FullyConnected", "name": "dense", "attrs": {"num_hidden": "4"},
            "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]],
        },
    ],
    "arg_nodes": [0, 1, 2],
    "node_row_ptr": [0, 1, 2, 3, 4],
    "heads": [[3, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}  # fmt: skip


def _outcome(recorder: MxnetRecorder, **params: Any) -> MemoryTrace | DnnMemError:
    (outcome,) = recorder.attempt([_request("net", **params)])
    return outcome


def test_exported_symbol_is_traced(open_recorder: Open, tmp_path: Path) -> None:
    """Shapes come with the job, since the file has none."""
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(SYMBOL))

    trace = _outcome(open_recorder(str(path)), shapes={"data": [3]})

    assert isinstance(trace, MemoryTrace)
    assert "dense" in {operation.module for operation in trace.operations}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(SYMBOL)[:100], "is no symbol: it is not JSON, or cut off"),
        ('{"layers": 3}', "is JSON but no symbol"),
        (json.dumps(SYMBOL).replace("FullyConnected", "NoSuchOperator"), "NoSuchOperator is not registered"),
    ],
)
def test_file_that_is_no_symbol_is_refused(open_recorder: Open, tmp_path: Path, text: str, message: str) -> None:
    """One line says what is wrong with which file."""
    path = tmp_path / "bad-symbol.json"
    path.write_text(text)

    with pytest.raises(WorkloadError, match=re.escape(message)) as raised:
        _outcome(open_recorder(str(path)))
    assert "bad-symbol.json" in str(raised.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "does not say how large its inputs are; write shapes={'data': [3, 224, 224]}"),
        ({"shapes": {"image": [3]}}, "the network has no input 'image'; its arguments are data, weight, bias"),
        ({"shapes": {"data": [0]}}, "the shape of 'data' is [0]; write shapes="),
        ({"shapes": {"data": [3]}, "depth": 2}, "takes no hyperparameter 'depth'; it takes shapes"),
    ],
)
def test_shapes_that_cannot_be_meant_are_refused(
    open_recorder: Open, tmp_path: Path, params: dict[str, Any], message: str
) -> None:
    """A missing or wrong shape never reaches MXNet."""
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(SYMBOL))

    outcome = _outcome(open_recorder(str(path)), **params)

    assert isinstance(outcome, UsageError)
    assert message in str(outcome)


def test_function_of_a_file_gives_the_network(open_recorder: Open, tmp_path: Path) -> None:
    """Hyperparameters that are not MXNet's settings are the function's arguments."""
    path = tmp_path / "net.py"
    path.write_text(
        "from mxnet import gluon\n"
        "def build(units):\n"
        "    return gluon.nn.Dense(units, in_units=3), {'data': (3,)}\n"
    )

    assert isinstance(_outcome(open_recorder(f"{path}:build"), units=5, execution="hybridized"), MemoryTrace)


def test_function_that_returns_no_network_is_refused(open_recorder: Open, tmp_path: Path) -> None:
    """The message shows what is wanted."""
    path = tmp_path / "net.py"
    path.write_text("def build():\n    return 3\n")

    outcome = _outcome(open_recorder(str(path)))

    assert isinstance(outcome, WorkloadError)
    assert "must return a HybridBlock or a Symbol and the shapes of its inputs" in str(outcome)


def test_unknown_name_is_refused_with_the_nearest(open_recorder: Open) -> None:
    """The model zoo's names are known."""
    with pytest.raises(WorkloadError, match=r"no MXNet workload 'resnet51'; did you mean resnet50"):
        _outcome(open_recorder("resnet51"))


@pytest.mark.parametrize(
    ("body", "message"),
    [("import os; os.kill(os.getpid(), 9)", "died of SIGKILL"), ("while True: pass", "did not finish within 5 s")],
)
def test_workload_that_dies_or_hangs_is_a_trace_error(
    open_recorder: Open, tmp_path: Path, body: str, message: str
) -> None:
    """The caller gets an answer whatever the workload does."""
    path = tmp_path / "net.py"
    path.write_text(f"def build():\n    {body}\n")

    outcome = _outcome(open_recorder(str(path), time_limit=5.0))

    assert isinstance(outcome, TraceError)
    assert message in str(outcome)


def test_interpreter_without_mxnet_is_named(open_recorder: Open) -> None:
    """This one's numpy is too new or its MXNet missing; either way the message says what to run where."""
    with pytest.raises(MissingPackageError, match=re.escape(sys.executable)) as raised:
        _outcome(open_recorder("resnet50", python=sys.executable))
    assert "pip install" in str(raised.value)
