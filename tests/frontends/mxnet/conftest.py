"""The worker's interpreter, and recorders that end with their test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from dnnmem_tune.errors import MissingPackageError
from dnnmem_tune.frontends.mxnet.client import MxnetRecorder
from dnnmem_tune.frontends.mxnet.interpreter import find_interpreter

Open = Callable[..., MxnetRecorder]


@pytest.fixture(scope="session")
def interpreter() -> str:
    """The Python that has MXNet; ``make test`` makes one."""
    try:
        return find_interpreter(os.environ)
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.fixture
def open_recorder(interpreter: str) -> Iterator[Open]:
    """Return a function that opens the recorder of a workload."""
    opened: list[MxnetRecorder] = []

    def open_one(workload: str, *, python: str = interpreter, time_limit: float = 120.0) -> MxnetRecorder:
        opened.append(
            MxnetRecorder(
                workload,
                compute_capability=(7, 0),
                total_bytes=16 << 30,
                num_sms=80,
                time_limit=time_limit,
                python=python,
            )
        )
        return opened[-1]

    yield open_one
    for recorder in opened:
        recorder.close()
