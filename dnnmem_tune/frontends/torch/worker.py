"""The worker process: imports torch and the workload once, forks a child for each trace.

It speaks one JSON document a line. Standard output belongs to the protocol and is moved
away before user code runs, so that a workload may print what it likes; standard input is
empty. A child has its own process group, a time limit and a memory limit: whatever a
workload does, the worker answers.

    -> {"workload": ..., "compute_capability": [8, 0], "total_bytes": ..., "num_sms": ...}
    <- {"ready": true} or {"error": {"kind": ..., "message": ...}}
    -> {"requests": [{...}, ...], "time_limit": 60.0, "memory_limit": 8589934592, "parallel": 2}
    <- {"results": [{"answer": {...}} or {"error": {...}}, ...]}
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import resource
import selectors
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import IO, Any

from dnnmem_tune.errors import DnnMemError, MissingPackageError, TraceError, UnsupportedError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.user_frames import is_user_code
from dnnmem_tune.ir.encoding import encode_trace
from dnnmem_tune.units import format_bytes

_POLL_SECONDS = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve requests until standard input ends."""
    serve(_prepare)


Answer = Callable[[RecordRequest, dict[str, Any]], dict[str, Any]]
"""What a child does: request and the message it came in -> the answer to send."""


def serve(prepare: Callable[[dict[str, Any]], Answer]) -> None:
    """Speak the protocol: ``prepare`` takes the setup, and what it returns is run in a child for each request."""
    requests, replies = _take_over_standard_streams()
    setup = json.loads(requests.readline())
    try:
        answer = prepare(setup)
    except BaseException as error:
        _send(replies, {"error": describe_error(error)})
        os._exit(1)
    _send(replies, {"ready": True})
    for line in requests:
        message = json.loads(line)
        _send(replies, {"results": _run_all(functools.partial(_answer, answer, message), message)})
    os._exit(0)  # an autograd thread may meet the interpreter's shutdown otherwise


def _answer(answer: Answer, message: dict[str, Any], request: RecordRequest) -> dict[str, Any]:
    return answer(request, message)


def _take_over_standard_streams() -> tuple[IO[str], IO[str]]:
    requests = os.fdopen(os.dup(0), "r")
    replies = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, replies


def _send(stream: IO[str], document: dict[str, Any]) -> None:
    stream.write(json.dumps(document, separators=(",", ":")) + "\n")
    stream.flush()


def _prepare(setup: dict[str, Any]) -> Answer:
    """Import torch and the workload; return the function that a child runs."""
    import torch

    from dnnmem_tune.frontends.torch import cuda_build, job, no_compiler
    from dnnmem_tune.frontends.torch.workloads import references, resolve

    torch.set_num_threads(1)  # forked children must not miss threads
    if isinstance(references.parse_reference(setup["workload"]), references.Builtin):
        no_compiler.install()
    mode = cuda_build.install(
        compute_capability=tuple(setup["compute_capability"]),
        total_bytes=setup["total_bytes"],
        num_sms=setup["num_sms"],
    )
    with mode, loading_within(setup["time_limit"]):
        build = resolve.load_build(setup["workload"])
    gc.collect()
    gc.freeze()  # children need not look at what is here already
    return lambda request, _message: encode_trace(job.record_job(build, request, mode))


class _LoadingTimeout(BaseException):
    """Not an ``Exception``, so that a workload that handles those does not swallow it."""


@contextlib.contextmanager
def loading_within(seconds: float) -> Iterator[None]:
    """End a workload that does not finish loading; the time that torch itself takes is not counted."""

    def stop(_signal: int, _frame: object) -> None:
        raise _LoadingTimeout(
            f"loading the workload did not finish within {seconds:g} s; it may wait or loop for ever when it is "
            "imported, or needs a higher time limit"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    verdict: str = ""
    """Why it was killed; empty while it runs."""


def _run_all(record: Callable[[RecordRequest], dict[str, Any]], message: dict[str, Any]) -> list[dict[str, Any]]:
    """Fork a child for each request, ``parallel`` at a time, and collect what they send."""
    waiting = list(enumerate(message["requests"]))[::-1]
    results: list[dict[str, Any]] = [{} for _ in waiting]
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or running:
            while waiting and len(running) < message["parallel"]:
                number, request = waiting.pop()
                pipe, child = _fork(record, request, number, message)
                running[pipe] = child
                selector.register(pipe, selectors.EVENT_READ)
            for key, _events in selector.select(_POLL_SECONDS):
                child = running[key.fd]
                chunk = os.read(key.fd, 1 << 20)
                if chunk:
                    child.received += chunk
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                del running[key.fd]
                results[child.number] = _result_of(child)
            for child in running.values():
                _enforce_limits(child, message)
    return results


def _fork(
    record: Callable[[RecordRequest], dict[str, Any]],
    request: dict[str, Any],
    number: int,
    message: dict[str, Any],
) -> tuple[int, _Child]:
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_a_child(record, request, write_end, message["memory_limit"], parent)
    os.close(write_end)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return read_end, _Child(number, pid, time.monotonic() + message["time_limit"])


def _be_a_child(
    record: Callable[[RecordRequest], dict[str, Any]],
    request: dict[str, Any],
    write_end: int,
    memory_limit: int,
    parent: int,
) -> None:
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + memory_limit, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    writer = os.getpid()
    document: dict[str, Any]
    try:
        request["compute_capability"] = tuple(request["compute_capability"])
        document = {"answer": record(RecordRequest(**request))}
    except BaseException as error:
        document = {"error": describe_error(error, memory_limit)}
    if os.getpid() != writer:
        os._exit(0)  # the workload forked and its child came back here
    with os.fdopen(write_end, "w") as stream:
        json.dump(document, stream, separators=(",", ":"))
    os._exit(0)


def _data_bytes() -> int:
    """Bytes that count against ``RLIMIT_DATA`` already."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def _enforce_limits(child: _Child, message: dict[str, Any]) -> None:
    if child.verdict:
        return
    if time.monotonic() > child.deadline:
        child.verdict = (
            f"did not finish within {message['time_limit']:g} s; it may wait or loop for ever, "
            "or needs a higher time limit"
        )
    elif resident_bytes(child.pid) > message["memory_limit"]:
        child.verdict = (
            f"used more than {format_bytes(message['memory_limit'])} of host memory; "
            "it may load data or weights, or needs a higher memory limit"
        )
    else:
        return
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that it does not share with files, or 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            _size, resident, shared, *_rest = statm.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _result_of(child: _Child) -> dict[str, Any]:
    # What the workload left running dies with it.
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    _pid, status = os.waitpid(child.pid, 0)
    if child.verdict:
        return {"error": {"kind": "trace", "message": f"the workload {child.verdict}"}}
    try:
        document: dict[str, Any] = json.loads(child.received)
    except ValueError:
        return {"error": {"kind": "trace", "message": f"the trace's process {_ending(status)}"}}
    return document


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"died of {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.waitstatus_to_exitcode(status)} and no result"


_OWN_KINDS: tuple[tuple[type[DnnMemError], str], ...] = (
    (UnsupportedError, "unsupported"),
    (WorkloadError, "workload"),
    (MissingPackageError, "package"),
    (TraceError, "trace"),
)
"""Errors that are raised on purpose -> kind; the first that holds."""


def describe_error(error: BaseException, memory_limit: int = 0) -> dict[str, str]:
    """Return the kind and the one-line message of what user code raised."""
    if isinstance(error, DnnMemError):
        kind = next((name for known, name in _OWN_KINDS if isinstance(error, known)), "usage")
        return {"kind": kind, "message": str(error)}
    where = _user_line(error)
    if isinstance(error, _LoadingTimeout):
        return {"kind": "trace", "message": f"{where}{error}"}
    if isinstance(error, SystemExit):
        return {"kind": "workload", "message": f"{where}the workload called sys.exit({error.code!r})"}
    if isinstance(error, MemoryError):
        return {
            "kind": "trace",
            "message": where + _out_of_host_memory(memory_limit),
        }
    unsupported = _unsupported_operator(error)
    if unsupported:
        return {"kind": "unsupported", "message": where + unsupported}
    text = " ".join(str(error).split()) or "no message"
    if "not enough memory" in text and "DefaultCPUAllocator" in text:
        return {
            "kind": "trace",
            "message": where + _out_of_host_memory(memory_limit),
        }
    return {"kind": "workload", "message": f"{where}{type(error).__name__}: {text[:500]}"}


def _unsupported_operator(error: BaseException) -> str:
    """Say which operator a trace cannot stand for; empty for any other error."""
    name, operator = type(error).__name__, str(getattr(error, "func", ""))
    if name in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return (
            f"what operator {operator!r} gives depends on values that a trace does not have, and no bound is known"
        )
    text = str(error)
    if name == "UnsupportedOperatorException" or "no fake impl or Meta kernel registered" in text:
        operator = operator or text.split(":", 1)[0] + "::" + text.split(":")[2].split(" ")[0].split("'")[0]
        return (
            f"no shape rule for operator {operator!r} (a custom CUDA extension?); register one with "
            "torch.library.register_fake"
        )
    return ""


def _out_of_host_memory(memory_limit: int) -> str:
    limit = f" (its limit is {format_bytes(memory_limit)})" if memory_limit else ""
    return f"the workload ran out of host memory{limit}"


def _user_line(error: BaseException) -> str:
    """``file.py:12: `` of the innermost frame of user code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_code(frame.filename):
            return f"{PurePath(frame.filename).name}:{frame.lineno}: "
    return ""


if __name__ == "__main__":
    main()
