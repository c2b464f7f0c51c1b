"""The caller's side of the worker: starts it, asks it, and survives it.

Nothing of torch is imported here. One client serves one workload on one kind of device;
its worker keeps torch and the workload imported, so that a further trace costs only itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Any

from dnnmem_tune.errors import (
    DnnMemError,
    MissingPackageError,
    TraceError,
    UnsupportedError,
    UsageError,
    WorkloadError,
)
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.ir.encoding import decode_trace
from dnnmem_tune.ir.trace import MemoryTrace

DEFAULT_TIME_LIMIT_SECONDS = 180.0
DEFAULT_MEMORY_LIMIT_BYTES = 8 << 30
_GRACE_SECONDS = 20.0
"""The worker enforces the limits; this is how much longer its own answer may take."""

_FRAMEWORK_SECONDS = 60.0
"""What importing torch may take on a busy machine; the workload's own limit comes on top."""

_KINDS: dict[str, type[DnnMemError]] = {
    "workload": WorkloadError,
    "unsupported": UnsupportedError,
    "usage": UsageError,
    "trace": TraceError,
    "package": MissingPackageError,
}


class TorchRecorder:
    """Records PyTorch training steps on fake tensors in a worker process."""

    name = "fake"
    module = "dnnmem_tune.frontends.torch.worker"
    """The worker that is run."""

    def __init__(
        self,
        workload: str,
        *,
        compute_capability: tuple[int, int],
        total_bytes: int,
        num_sms: int,
        time_limit: float = DEFAULT_TIME_LIMIT_SECONDS,
        memory_limit: int = DEFAULT_MEMORY_LIMIT_BYTES,
        python: str = sys.executable,
    ) -> None:
        self._setup: dict[str, Any] = {
            "workload": workload,
            "compute_capability": list(compute_capability),
            "total_bytes": total_bytes,
            "num_sms": num_sms,
            "time_limit": time_limit,
        }
        self._time_limit = time_limit
        self._memory_limit = memory_limit
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._output: _Lines | None = None
        self._last_words: deque[bytes] = deque(maxlen=64)
        self._lock = threading.Lock()

    def fingerprint(self) -> str:
        """Return what a cached trace depends on besides the request and the workload's source."""
        try:
            release = version("torch")
        except PackageNotFoundError:
            release = "not installed"
        return f"torch {release}, {self.name}"

    def record(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace]:
        """Return one trace with constant sizes for each request, in order; see ``Recorder``."""
        outcomes = self.attempt(requests)
        for outcome in outcomes:
            if isinstance(outcome, DnnMemError):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, MemoryTrace)]

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Return for each request its trace, or the error that the request ended with.

        Raises:
            DnnMemError: If the worker cannot be started, or the workload cannot be loaded.

        """
        return [_outcome(result) for result in self._results(requests)]

    def _results(self, requests: Sequence[RecordRequest], **message: Any) -> list[dict[str, Any]]:
        with self._lock:
            self._start()
            parallel = max(1, min(len(requests), len(os.sched_getaffinity(0))))
            rounds = -(-len(requests) // parallel)
            message |= {
                "requests": [dataclasses.asdict(request) for request in requests],
                "time_limit": self._time_limit,
                "memory_limit": self._memory_limit,
                "parallel": parallel,
            }
            reply = self._ask(message, self._time_limit * rounds + _GRACE_SECONDS)
        results: list[dict[str, Any]] = reply["results"]
        return results

    def close(self) -> None:
        """End the worker; a later request starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._last_words.clear()
        self._process = subprocess.Popen(
            [self._python, "-m", self.module],
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output = _Lines(self._process.stdout)
        threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True).start()
        reply = self._ask(self._setup, self._time_limit + _FRAMEWORK_SECONDS)
        if "error" in reply:
            self.close()
            raise error_from(reply["error"])

    def _environment(self) -> dict[str, str] | None:
        """The worker's environment; its parent's where it is not given."""
        return None

    def _listen(self, stream: IO[bytes]) -> None:
        """Keep the end of what user code prints; a pipe that nobody reads would stop it."""
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                self._last_words.append(chunk[-4096:])

    def _ask(self, message: dict[str, Any], time_limit: float) -> dict[str, Any]:
        process, output = self._process, self._output
        assert process is not None
        assert process.stdin is not None
        assert output is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            line = output.read(time.monotonic() + time_limit)
        except BrokenPipeError:
            line = b""
        except TimeoutError as error:
            self.close()
            raise TraceError(
                f"the worker of {self._setup['workload']} did not answer within {time_limit:g} s and was ended"
            ) from error
        except BaseException:  # Ctrl-C above all: the worker must not outlive the question
            self.close()
            raise
        if not line:
            raise self._explain_death()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _explain_death(self) -> DnnMemError:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        code = self._process.poll()
        text = b"".join(self._last_words).decode(errors="replace").strip().splitlines()
        self.close()
        if any("No module named 'torch'" in line for line in text):
            return MissingPackageError(
                "the PyTorch front-end needs the package 'torch', which is not installed; "
                'run pip install "dnnmem-tune[torch]"'
            )
        how = (
            f"died of {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with status {code}"
        )
        last = f"; its last line was: {text[-1][:300]}" if text else ""
        return TraceError(f"the worker process that loads {self._setup['workload']} {how}{last}")


class _Lines:
    """Lines from a pipe, with a deadline."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._pending = bytearray()

    def read(self, deadline: float) -> bytes:
        """Return the next line, or nothing at the end of the stream.

        Raises:
            TimeoutError: If the deadline (of ``time.monotonic``) passes first.

        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            start = 0
            while True:
                end = self._pending.find(b"\n", start)
                if end >= 0:
                    line = bytes(self._pending[:end])
                    del self._pending[: end + 1]
                    return line
                start = len(self._pending)
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(self._stream.fileno(), 1 << 20)
                if not chunk:
                    return b""
                self._pending += chunk


def _outcome(result: dict[str, Any]) -> MemoryTrace | DnnMemError:
    return error_from(result["error"]) if "error" in result else decode_trace(result["answer"])


def error_from(document: dict[str, str]) -> DnnMemError:
    """Return the error that the worker described."""
    return _KINDS[document["kind"]](document["message"])
