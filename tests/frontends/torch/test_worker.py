"""Whatever a workload does, the caller gets a trace or one clear line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dnnmem_tune.errors import DnnMemError, TraceError, UnsupportedError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.client import TorchRecorder
from dnnmem_tune.ir.trace import MemoryTrace

PROGRAM = Path(__file__).parent / "programs" / "misbehave.py"
MEMORY_LIMIT = 1 << 30
TIME_LIMIT = 20.0


def recorder_of(workload: str, time_limit: float = TIME_LIMIT) -> TorchRecorder:
    """A recorder for an A100."""
    return TorchRecorder(
        workload,
        compute_capability=(8, 0),
        total_bytes=40 << 30,
        num_sms=108,
        time_limit=time_limit,
        memory_limit=MEMORY_LIMIT,
    )


@pytest.fixture(scope="module")
def recorder() -> Iterator[TorchRecorder]:
    """One worker for all misdeeds: each must leave it able to serve the next."""
    recorder = recorder_of(f"{PROGRAM}:build")
    yield recorder
    recorder.close()


def outcome_of(recorder: TorchRecorder, how: str) -> MemoryTrace | DnnMemError:
    """What one trace ends with, after which a well-behaved one must still work."""
    request = RecordRequest(workload="", batch_size=4, params={"how": how})
    outcome, behaved = recorder.attempt([request, RecordRequest(workload="", batch_size=4)])
    assert isinstance(behaved, MemoryTrace)
    return outcome


@pytest.mark.parametrize("how", ["print", "fork", "read"])
def test_harmless_habits_change_nothing(recorder: TorchRecorder, how: str) -> None:
    """Printing protocol lines, forking and reading standard input must not reach the caller."""
    trace = outcome_of(recorder, how)
    assert isinstance(trace, MemoryTrace)
    assert trace.events == outcome_of(recorder, "").events  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("raise", WorkloadError, "misbehave.py:34: ValueError: the images are all grey"),
        ("leave", WorkloadError, "misbehave.py:53: the workload called sys.exit(7)"),
        ("grow", TraceError, "host memory"),
        ("grow at once", TraceError, "the workload ran out of host memory (its limit is 1.00 GiB)"),
        ("crash", TraceError, "the trace's process died of SIGSEGV"),
        ("compile", UnsupportedError, "torch.compile is not modelled"),
        (
            "no step",
            WorkloadError,
            "build must return a function that runs one training step, it returned NoneType",
        ),
    ],
)
def test_a_misdeed_gets_one_clear_line(
    recorder: TorchRecorder, how: str, kind: type[DnnMemError], message: str
) -> None:
    """The line names the user's own file and line where there is one."""
    error = outcome_of(recorder, how)
    assert type(error) is kind
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_step_that_loops_for_ever_ends_at_the_time_limit() -> None:
    """A study must not hang on one configuration."""
    recorder = recorder_of(f"{PROGRAM}:build", time_limit=6.0)
    try:
        started = time.monotonic()
        error = outcome_of(recorder, "loop")
        assert "did not finish within 6 s" in str(error)
        assert time.monotonic() - started < 25
    finally:
        recorder.close()


def test_a_module_that_loops_when_imported_ends_at_the_time_limit(tmp_path: Path) -> None:
    """Nothing is known of the workload yet, so the message says where it hung."""
    program = tmp_path / "endless.py"
    program.write_text("while True: pass\n")
    recorder = recorder_of(f"{program}:build", time_limit=5.0)
    with pytest.raises(TraceError, match=r"endless\.py:1: loading the workload did not finish within 5 s"):
        recorder.record([RecordRequest(workload="", batch_size=4)])


def test_a_module_that_kills_the_worker_is_reported_with_its_last_line(tmp_path: Path) -> None:
    """A crash while importing leaves no Python error; its last line is what there is."""
    program = tmp_path / "crash.py"
    program.write_text("import os\nprint('loading the data', flush=True)\nos.kill(os.getpid(), 9)\n")
    recorder = recorder_of(f"{program}:build")
    with pytest.raises(TraceError, match=r"died of SIGKILL; its last line was: loading the data"):
        recorder.record([RecordRequest(workload="", batch_size=4)])


def test_nothing_of_the_callers_torch_is_patched() -> None:
    """A study trains in the process that asks."""
    code = (
        "import torch\n"
        "from dnnmem_tune.frontends import Tracing, open_workload\n"
        "state = lambda: (torch.cuda.is_available, torch.compile, torch.Tensor.numpy, torch.cuda.is_available())\n"
        "before = state()\n"
        f"with open_workload({str(PROGRAM) + ':build'!r}, params={{}}, tracing=Tracing()) as workload:\n"
        "    workload.exact_trace(4)\n"
        "assert before == state()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "assert model.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_interrupted_caller_leaves_no_worker_behind() -> None:
    """Ctrl-C in the middle of a trace ends the worker and its children."""
    code = (
        "from dnnmem_tune.frontends import Tracing, open_workload\n"
        f"workload = open_workload({str(PROGRAM) + ':build'!r}, params={{'how': 'loop'}}, tracing=Tracing())\n"
        "print('asking', flush=True)\n"
        "try:\n"
        "    workload.exact_trace(4)\n"
        "except KeyboardInterrupt:\n"
        "    print(workload._recorder._process, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "asking\n"
        worker = _wait_for_child(caller.pid)
        time.sleep(1.0)
        caller.send_signal(signal.SIGINT)
        assert caller.stdout.read() == "None\n"
    assert caller.returncode == 0
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{worker}/stat") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{worker}/stat")


def _wait_for_child(pid: int) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError("the caller started no worker")
