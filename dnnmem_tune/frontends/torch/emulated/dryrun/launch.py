"""Start the user's command on an emulated card, within limits, and collect what its processes tell."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dnnmem_tune.emulator.cache import ensure_build
from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.installation import Installation, find_installation
from dnnmem_tune.errors import TraceError, WorkloadError
from dnnmem_tune.frontends.torch.emulated.dryrun.command import check_command, interpreter_of
from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Ending, ProcessOutcome, decode_outcome
from dnnmem_tune.units import format_bytes

_BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """How the user's command is to be run."""

    card: Card

    num_steps: int = 3
    """Optimizer steps after which the program is stopped."""

    conv_workspace: str = "none"
    """Model of the convolution workspace."""

    time_limit: float = 300.0
    """Seconds."""

    memory_limit: int = 16 << 30
    """Bytes of host memory that the program may take, all its processes together."""

    snapshot: Path | None = None
    """Where to leave PyTorch's memory snapshot (for pytorch.org/memory_viz)."""


def run_dry(
    command: Sequence[str],
    plan: DryRun,
    *,
    cache: Path | None = None,
    show: Callable[[str], None] | None = None,
    installation: Installation | None = None,
) -> list[ProcessOutcome]:
    """Run ``command`` and return what each of its training processes tells, by rank.

    Args:
        command: Words of the command line, as the user would start it.
        plan: The card, and when to stop.
        cache: Folder of built stub libraries; the user's own by default.
        show: Called with each line that the program prints.
        installation: The CUDA build of the command's interpreter, where it is known already.

    Raises:
        UsageError: If the command is no Python program.
        WorkloadError: If it cannot be started, never imports PyTorch, or raises.
        TraceError: If it outgrows a limit.
        UnsupportedError: If its interpreter has no PyTorch that can be emulated.

    """
    check_command(command)
    installation = installation or find_installation(interpreter_of(command))
    folder = ensure_build(installation, cache)
    with tempfile.TemporaryDirectory(prefix="dnnmem-dryrun-") as results:
        setup = Path(results) / "setup"
        setup.write_text(
            json.dumps(
                {
                    "emulator": str(folder),
                    "card": dataclasses.asdict(plan.card),
                    "num_steps": plan.num_steps,
                    "conv_workspace": plan.conv_workspace,
                    "results": results,
                    "snapshot": plan.snapshot is not None,
                }
            )
        )
        words = _Words(show)
        process = _start(command, setup)
        assert process.stdout is not None
        reader = threading.Thread(target=words.listen, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            _wait(process, Path(results), plan, words)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(timeout=2)
        outcomes = _collect(Path(results))
        _check(outcomes, process.returncode, words)
        return _keep_snapshot(outcomes, plan.snapshot)


def _start(command: Sequence[str], setup: Path) -> subprocess.Popen[bytes]:
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "DNNMEM_DRYRUN": str(setup),
        "PYTHONPATH": f"{_BOOTSTRAP}{os.pathsep}{path}" if path else str(_BOOTSTRAP),
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # a watchdog that waits for ranks that do not exist
        "KINETO_LOG_LEVEL": "99",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # the real machine's; the emulated one shows all its cards
    return subprocess.Popen(
        list(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], results: Path, plan: DryRun, words: _Words) -> None:
    deadline = time.monotonic() + plan.time_limit
    while process.poll() is None:
        if any(outcome.rank == 0 and outcome.num_steps for outcome in _collect(results)):
            return
        if any(outcome.ending is Ending.OUT_OF_MEMORY for outcome in _collect(results)):
            return
        if time.monotonic() > deadline:
            raise TraceError(
                f"the program did not reach {plan.num_steps} optimizer steps within {plan.time_limit:g} s"
                f"{words.last_line()}; give it more time, or fewer steps"
            )
        used = group_memory(process.pid)
        if used > plan.memory_limit:
            raise TraceError(
                f"the program took {format_bytes(used)} of host memory, its limit is "
                f"{format_bytes(plan.memory_limit)}; give it less data, or a higher limit"
            )
        time.sleep(_POLL_SECONDS)


def _collect(results: Path) -> list[ProcessOutcome]:
    outcomes = [decode_outcome(json.loads(file.read_text())) for file in sorted(results.glob("*.json"))]
    return sorted(outcomes, key=lambda outcome: (outcome.rank, not outcome.num_steps, -outcome.peak_device_bytes))


def _check(outcomes: list[ProcessOutcome], status: int | None, words: _Words) -> None:
    if any(outcome.ending in (Ending.STEPS, Ending.OUT_OF_MEMORY) for outcome in outcomes):
        return
    raised = next((outcome for outcome in outcomes if outcome.ending is Ending.RAISED), None)
    if raised is not None:
        where = f"{raised.place.file}:{raised.place.line}: " if raised.place else ""
        raise WorkloadError(f"{where}{raised.message}")
    if not outcomes:
        how = f"died of {signal.Signals(-status).name}" if status and status < 0 else f"ended with status {status}"
        raise WorkloadError(f"the program {how} before it imported PyTorch{words.last_line()}")


def _keep_snapshot(outcomes: list[ProcessOutcome], target: Path | None) -> list[ProcessOutcome]:
    if target is None or not outcomes or not outcomes[0].snapshot:
        return outcomes
    shutil.move(outcomes[0].snapshot, target)
    return [dataclasses.replace(outcomes[0], snapshot=str(target)), *outcomes[1:]]


def group_memory(group: int) -> int:
    """Return the bytes of host memory that the processes of a process group hold for themselves."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            statistics = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if int(statistics[2]) == group:
                _size, resident, shared, *_rest = Path(entry.path, "statm").read_text().split()
                total += (int(resident) - int(shared)) * page
    return total


class _Words:
    """What the program prints: shown as it comes, the end of it kept."""

    def __init__(self, show: Callable[[str], None] | None) -> None:
        self._show = show
        self._lines: deque[str] = deque(maxlen=20)

    def listen(self, stream: IO[bytes]) -> None:
        pending = b""
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                # A line without an end must not be kept for ever.
                *lines, pending = (pending + chunk).replace(b"\r", b"\n")[-(1 << 20) :].split(b"\n")
                for line in lines:
                    self._take(line)
        self._take(pending)

    def last_line(self) -> str:
        """A clause with the last line that was printed; empty where there is none."""
        return f"; its last line was: {self._lines[-1][:300]}" if self._lines else ""

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._lines.append(text)
            if self._show is not None:
                self._show(text)
