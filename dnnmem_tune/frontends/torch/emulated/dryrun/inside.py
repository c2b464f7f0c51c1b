"""A dry run from within: follows the user's program until it has done enough steps.

Loaded by ``sitecustomize`` into every Python process of the command; does nothing in those
that never import torch.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dnnmem_tune.emulator.card import decode_card
from dnnmem_tune.emulator.load import LoadedCard, load
from dnnmem_tune.frontends.torch.emulated.after_import import when_imported
from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Ending, Place, ProcessOutcome
from dnnmem_tune.units import MIB, format_bytes

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.emulated.dryrun.history import Backward
    from dnnmem_tune.frontends.torch.emulated.dryrun.peaks import PeakMeter
    from dnnmem_tune.frontends.torch.emulated.host_values import HostValues

_HISTORY_ENTRIES = 2_000_000


def wait_for_torch(setup_file: str) -> None:
    """Put the emulated card beneath torch when, and if, it is imported."""
    setup = json.loads(Path(setup_file).read_text())
    loaded: list[LoadedCard] = []

    def load_card() -> None:
        loaded.append(load(setup["emulator"], decode_card(setup["card"])))

    when_imported("torch", lambda _torch: Watch(setup, loaded[0]).install(), before=load_card)


class Watch:
    """Counts optimizer steps, cuts phases, notes where things are, and stops the program."""

    def __init__(self, setup: dict[str, Any], card: LoadedCard, at_end: Callable[[], None] | None = None) -> None:
        self.setup = setup
        self.at_end = at_end
        self.card = card
        self.pid = os.getpid()
        self.steps: Counter[int] = Counter()
        self.backward: list[Backward] = []
        self.error: tuple[str, Place | None] | None = None
        self.workspaces: set[int] = set()
        self.is_over = False
        self.missing_bytes = 0
        self.meter: PeakMeter
        self.host_values: HostValues

    @property
    def num_steps(self) -> int:
        """Steps of the optimizer that has done most."""
        return max(self.steps.values(), default=0)

    def install(self) -> None:
        """Set every hook; called when torch has just been imported."""
        import torch
        from torch.optim import optimizer as optimizer_hooks

        from dnnmem_tune.frontends.torch.emulated.dryrun.peaks import PeakMeter
        from dnnmem_tune.frontends.torch.emulated.host_memory import skip_large_random_fills
        from dnnmem_tune.frontends.torch.emulated.host_values import HostValues
        from dnnmem_tune.frontends.torch.emulated.known_answers import answer_known_questions

        self.meter, self.host_values = PeakMeter(), HostValues()
        self.meter.keep_user_peaks()
        self.card.watch_reads(self.host_values.note)
        self._follow_convolutions()
        skip_large_random_fills()
        answer_known_questions()
        _show_every_card(torch)
        optimizer_hooks.register_optimizer_step_pre_hook(self._before_step)
        optimizer_hooks.register_optimizer_step_post_hook(self._after_step)
        self._watch_first_forward()
        self._watch_backward(torch)
        self._watch_memory(torch)
        atexit.register(self._at_exit)
        previous = sys.excepthook

        def note_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._note_error(error)
            previous(kind, error, trace)

        sys.excepthook = note_error

    def _follow_convolutions(self) -> None:
        if self.setup["conv_workspace"] == "none":
            return
        from dnnmem_tune.frontends.torch.emulated.convolutions import follow_model
        from dnnmem_tune.operators.scratch import KernelTarget

        card = decode_card(self.setup["card"])
        target = KernelTarget(
            compute_capability=card.compute_capability,
            num_sms=card.num_sms,
            threads_per_sm=card.threads_per_sm,
            conv_workspace=self.setup["conv_workspace"],
        )
        follow_model(self.card, target, note=lambda nbytes: self.workspaces.add(_segment_bytes(nbytes)))

    def _watch_first_forward(self) -> None:
        from torch.nn.modules import module as module_hooks

        def end_build(*_arguments: Any) -> None:
            handle.remove()
            self.meter.cut("build")

        handle = module_hooks.register_module_forward_pre_hook(end_build)

    def _watch_backward(self, torch: Any) -> None:
        from dnnmem_tune.frontends.torch.emulated.dryrun.history import Backward, place_here

        run = torch.autograd.graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self.meter.cut(f"step {self.num_steps} forward")
            start, place = time.time_ns() // 1000, place_here()
            try:
                return run(*args, **kwargs)
            finally:
                self.backward.append(Backward(start, time.time_ns() // 1000 + 1, place))
                if not self.is_over:
                    self.meter.cut(f"step {self.num_steps} backward")

        torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = run_backward

    def _watch_memory(self, torch: Any) -> None:
        torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        initialize = torch.cuda._lazy_init

        def lazy_init() -> None:
            first = not torch.cuda.is_initialized()
            initialize()
            if first and torch.cuda.is_initialized():
                torch.cuda.memory._record_memory_history(max_entries=_HISTORY_ENTRIES, stacks="python")

        torch.cuda._lazy_init = lazy_init

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.meter.cut(f"step {self.num_steps} backward")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.meter.cut(f"step {self.num_steps} optimizer")
        self.steps[id(optimizer)] += 1
        # Of several optimizers, such as those of a GAN, each is to have its turn.
        if min(self.steps.values()) >= self.setup["num_steps"] or self.num_steps >= 2 * self.setup["num_steps"]:
            self._stop(Ending.STEPS)

    def _out_of_memory(self, _card: int, segment: int, _total: int, free: int) -> None:
        from dnnmem_tune.frontends.torch.emulated.dryrun.history import place_here

        if segment in self.workspaces:
            return  # a convolution goes on without its workspace
        place = place_here()
        if place is None and self.backward:
            place = self.backward[-1].place
        self.missing_bytes = max(0, segment - free)
        message = f"PyTorch asked the card for {format_bytes(segment)} more, and {format_bytes(free)} were free"
        self._stop(Ending.OUT_OF_MEMORY, message, place)

    def _note_error(self, error: BaseException) -> None:
        from dnnmem_tune.frontends.torch.emulated.dryrun.history import users_place

        frames = [(f.filename, f.lineno or 0, f.name) for f in reversed(traceback.extract_tb(error.__traceback__))]
        # PyTorch's errors go on with general advice.
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:500]
        self.error = (f"{type(error).__name__}: {text}" if text else type(error).__name__, users_place(frames))

    def _at_exit(self) -> None:
        if os.getpid() != self.pid or self.is_over:
            return
        if self.error is not None:
            self._write(Ending.RAISED, *self.error)
        else:
            self._write(Ending.FINISHED)

    def _stop(self, ending: Ending, message: str = "", place: Place | None = None) -> None:
        """Tell, and end the process here: nothing after this point is of interest."""
        if os.getpid() != self.pid:
            return
        self._write(ending, message, place)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _write(self, ending: Ending, message: str = "", place: Place | None = None) -> None:
        self.is_over = True
        if self.at_end is not None:
            self.at_end()
        outcome = self._outcome(ending, message, place)
        file = Path(self.setup["results"]) / f"{self.pid}.json"
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(dataclasses.asdict(outcome)))
        partial.rename(file)

    def _outcome(self, ending: Ending, message: str, place: Place | None) -> ProcessOutcome:
        import torch

        from dnnmem_tune.frontends.torch.emulated.dryrun.history import place_of_peak

        if ending is not Ending.STEPS:
            self.meter.cut("build" if not self.meter.phases else f"step {self.num_steps} forward")
        used = max(self.meter.phases, key=lambda card: _peak(self.meter, card), default=-1)
        phases = tuple(self.meter.phases.get(used, ()))
        peak_place, snapshot, num_retries = None, "", 0
        if used >= 0:
            record = torch.cuda.memory._snapshot()
            peak_place = place_of_peak(record["device_traces"][used], self.backward)
            snapshot = self._save(record)
            num_retries = torch._C._cuda_memoryStats(used)["num_alloc_retries"]
        return ProcessOutcome(
            pid=self.pid,
            rank=int(os.environ.get("RANK") or 0),
            num_local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE") or 1),
            ending=ending,
            message=message,
            place=place,
            num_steps=self.num_steps,
            phases=phases,
            peak_allocated_bytes=max((phase.allocated_bytes for phase in phases), default=0),
            peak_reserved_bytes=max((phase.reserved_bytes for phase in phases), default=0),
            peak_device_bytes=self.card.peak_bytes(max(0, used)),
            peak_place=peak_place,
            peak_phase=max(phases, key=lambda phase: phase.allocated_bytes).name if phases else "",
            missing_bytes=self.missing_bytes,
            num_retries=num_retries,
            host_reads=dict(self.host_values.places),
            notes=(*self.host_values.notes(), *self.card.notes(decode_card(self.setup["card"]))),
            snapshot=snapshot,
        )

    def _save(self, record: Any) -> str:
        if not self.setup["snapshot"]:
            return ""
        import pickle

        file = Path(self.setup["results"]) / f"{self.pid}.pickle"
        with file.open("wb") as stream:
            pickle.dump(record, stream)
        return str(file)


def _peak(meter: PeakMeter, card: int) -> int:
    return max(phase.reserved_bytes for phase in meter.phases[card])


def _segment_bytes(nbytes: int) -> int:
    """What the allocator asks of the card for a request that no cached block serves.

    Source: ``get_allocation_size`` in ``c10/cuda/CUDACachingAllocator.cpp``, release 2.14.
    """
    if nbytes <= MIB:
        return 2 * MIB
    return 20 * MIB if nbytes < 10 * MIB else -(-nbytes // (2 * MIB)) * 2 * MIB


def _show_every_card(torch: Any) -> None:
    """CUDA_VISIBLE_DEVICES is the real machine's: the emulated one shows all its cards."""
    torch.cuda._parse_visible_devices = lambda: list(range(64))
