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
from dnnmem_tune.emulator.installation import find_installation
from dnnmem_tune.errors import TraceError, WorkloadError
from dnnmem_tune.frontends.torch.emulated.dryrun.command import check_command, interpreter_of
from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Ending, ProcessOutcome, decode_outcome
from dnnmem_tune.units import format_bytes

_BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
_POLL_SECONDS = 0.05
_RANKS_SECONDS = 20.0
"""How long the other ranks may take once the first has told what it saw."""


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
) -> list[ProcessOutcome]:
    """Run ``command`` and return what each of its training processes tells, by rank.

    Args:
        command: Words of the command line, as the user would start it.
        plan: The card, and when to stop.
        cache: Folder of built stub libraries; the user's own by default.
        show: Called with each line that the program prints.

    Raises:
        UsageError: If the command is no Python program.
        WorkloadError: If it cannot be started, never imports PyTorch, or raises.
        TraceError: If it outgrows a limit.
        UnsupportedError: If its interpreter has no PyTorch that can be emulated.

    """
    check_command(command)
    folder = ensure_build(find_installation(interpreter_of(command)), cache)
    with tempfile.TemporaryDirectory(prefix="dnnmem-dryrun-") as results:
        setup = write_setup(Path(results), folder, plan)
        words = Words(show)
        process = _start(command, setup)
        assert process.stdout is not None
        reader = threading.Thread(target=words.listen, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            wait_for_outcome(process.poll, process.pid, Path(results), plan, words)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(timeout=5)  # a writer that left the group may hold the pipe open
            if not reader.is_alive():
                process.stdout.close()
        return collect_outcomes(Path(results), process.returncode, plan, words)


def write_setup(results: Path, emulator: Path, plan: DryRun) -> Path:
    """Write what the processes of a run need to know into its folder; they leave their outcomes there."""
    setup = results / "setup"
    document = {
        "emulator": str(emulator),
        "card": dataclasses.asdict(plan.card),
        "num_steps": plan.num_steps,
        "conv_workspace": plan.conv_workspace,
        "results": str(results),
        "snapshot": plan.snapshot is not None,
    }
    setup.write_text(json.dumps(document))
    return setup


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a run: the caller's, less what is about the real machine's cards."""
    return {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # a watchdog that waits for ranks that do not exist
        "KINETO_LOG_LEVEL": "99",
        **more,
    }


def _start(command: Sequence[str], setup: Path) -> subprocess.Popen[bytes]:
    path = os.environ.get("PYTHONPATH")
    return subprocess.Popen(
        list(command),
        env=environment(
            DNNMEM_DRYRUN=str(setup), PYTHONPATH=f"{_BOOTSTRAP}{os.pathsep}{path}" if path else str(_BOOTSTRAP)
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_for_outcome(
    poll: Callable[[], int | None], group: int, results: Path, plan: DryRun, words: Words
) -> None:
    """Wait until a run has told what it had to, or has ended.

    Args:
        poll: Returns the exit status, or None while the program runs.
        group: Its process group.
        results: Folder of the run.
        plan: Its limits.
        words: What it prints.

    Raises:
        TraceError: If it outgrows a limit.

    """
    deadline = time.monotonic() + plan.time_limit
    ranks_deadline = float("inf")
    while poll() is None:
        outcomes = [
            outcome for outcome in _collect(results) if outcome.num_steps or outcome.ending is Ending.OUT_OF_MEMORY
        ]
        if outcomes:
            ranks_deadline = min(ranks_deadline, time.monotonic() + _RANKS_SECONDS)
            if len(outcomes) >= outcomes[0].num_local_ranks or time.monotonic() > ranks_deadline:
                return
        if time.monotonic() > deadline:
            raise TraceError(
                f"the program did not reach {plan.num_steps} optimizer steps within {plan.time_limit:g} s"
                f"{words.last_line()}; give it more time, or fewer steps"
            )
        used = group_memory(group)
        if used > plan.memory_limit:
            raise TraceError(
                f"the program took {format_bytes(used)} of host memory, its limit is "
                f"{format_bytes(plan.memory_limit)}; give it less data, or a higher limit"
            )
        time.sleep(_POLL_SECONDS)


def _collect(results: Path) -> list[ProcessOutcome]:
    outcomes = [decode_outcome(json.loads(file.read_text())) for file in sorted(results.glob("*.json"))]
    return sorted(outcomes, key=lambda outcome: (outcome.rank, not outcome.num_steps, -outcome.peak_device_bytes))


def collect_outcomes(results: Path, status: int | None, plan: DryRun, words: Words) -> list[ProcessOutcome]:
    """Return what the processes of a run told, by rank.

    Raises:
        WorkloadError: If the program failed before it did what was asked.

    """
    outcomes = _collect(results)
    if not any(outcome.ending in (Ending.STEPS, Ending.OUT_OF_MEMORY) for outcome in outcomes):
        _check_ending(outcomes, status, plan, words)
    return _keep_snapshot(outcomes, plan.snapshot)


def _check_ending(outcomes: list[ProcessOutcome], status: int | None, plan: DryRun, words: Words) -> None:
    raised = next((outcome for outcome in outcomes if outcome.ending is Ending.RAISED), None)
    if raised is not None:
        where = f"{raised.place.file}:{raised.place.line}: " if raised.place else ""
        hint = ""
        if "invalid device ordinal" in raised.message:
            cards = plan.card.num_cards
            hint = f" (the emulated machine has {cards} card{'' if cards == 1 else 's'}; give it more)"
        raise WorkloadError(f"{where}{raised.message}{hint}")
    if outcomes and status and status > 0 and not any(outcome.num_steps for outcome in outcomes):
        raise WorkloadError(f"the program ended with status {status} before its first step{words.last_line()}")
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


class Words:
    """What the program prints: shown as it comes, the end of it kept."""

    def __init__(self, show: Callable[[str], None] | None) -> None:
        self._show = show
        self._lines: deque[str] = deque(maxlen=20)

    def listen(self, stream: IO[bytes]) -> None:
        """Take what comes out of ``stream``, until it ends."""
        pending = b""
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                # A line without an end must not be kept for ever.
                *lines, pending = (pending + chunk).replace(b"\r", b"\n")[-(1 << 20) :].split(b"\n")
                for line in lines:
                    self._take(line)
        self._take(pending)

    def read(self, file: Path) -> None:
        """Take what was printed into a file."""
        with contextlib.suppress(OSError), file.open("rb") as stream:
            self.listen(stream)

    def last_line(self) -> str:
        """A clause with the last line that was printed; empty where there is none."""
        return f"; its last line was: {self._lines[-1][:300]}" if self._lines else ""

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._lines.append(text)
            if self._show is not None:
                self._show(text)
