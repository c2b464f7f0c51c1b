"""Many dry runs of one script: only the first one pays for its imports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dnnmem_tune.emulator.cache import ensure_build
from dnnmem_tune.emulator.installation import find_installation
from dnnmem_tune.errors import TraceError
from dnnmem_tune.frontends.torch.emulated.dryrun.command import check_command, interpreter_of, script_of
from dnnmem_tune.frontends.torch.emulated.dryrun.launch import (
    DryRun,
    Words,
    collect_outcomes,
    environment,
    run_dry,
    wait_for_outcome,
    write_setup,
)
from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import ProcessOutcome

_ROOT = Path(__file__).resolve().parents[5]
_MODULE = "dnnmem_tune.frontends.torch.emulated.dryrun.server"


class WarmRunner:
    """Runs commands that differ in their arguments; a context manager that ends its server.

    A command other than ``python script.py ...`` is started anew each time.
    """

    def __init__(self, plan: DryRun, *, cache: Path | None = None) -> None:
        self._plan = plan
        self._cache = cache
        self._server: subprocess.Popen[str] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            for stream in (server.stdin, server.stdout):
                if stream is not None:
                    stream.close()

    def run(self, command: Sequence[str]) -> list[ProcessOutcome]:
        """Return what the processes of ``command`` tell; raises as ``run_dry`` does."""
        check_command(command)
        script = script_of(command)
        if script is None:
            return run_dry(command, self._plan, cache=self._cache)
        if self._server is None:
            self._start(interpreter_of(command))
        with tempfile.TemporaryDirectory(prefix="dnnmem-dryrun-") as results:
            output, words = Path(results, "output"), Words(None)
            request = {
                "setup": str(write_setup(Path(results), self._folder, self._plan)),
                "script": command[script],
                "arguments": list(command[script + 1 :]),
                "output": str(output),
            }
            child = self._ask(request)["pid"]
            ending = _Ending(child)
            try:
                wait_for_outcome(ending.poll, child, Path(results), self._plan, words)
            except TraceError:
                words.read(output)
                raise
            finally:
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGKILL)
                status = self._read()["status"]
            words.read(output)
            return collect_outcomes(Path(results), status, self._plan, words)

    def _start(self, python: str) -> None:
        self._folder = ensure_build(find_installation(python), self._cache)
        path = os.environ.get("PYTHONPATH")
        self._server = subprocess.Popen(
            [python, "-c", f"import sys; sys.path.append({str(_ROOT)!r}); import runpy; "
             f"from {_MODULE} import main; main()"],
            env=environment(**({"PYTHONPATH": path} if path else {})),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._ask({"emulator": str(self._folder), "card": dataclasses.asdict(self._plan.card)})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._server is not None
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(message) + "\n")
            self._server.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._server is not None
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            self.close()
            raise TraceError("the process that keeps PyTorch imported ended; run the command once without --find")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Ending:
    """Watches a process that is not this one's child."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def poll(self) -> int | None:
        """Return None while the process runs; its status is the server's to tell."""
        try:
            state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return 0
        return 0 if state == "Z" else None
