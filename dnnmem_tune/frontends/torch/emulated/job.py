"""One job on the emulated card: recorded as a trace, or run for its peaks alone."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dnnmem_tune.emulator.load import LoadedCard
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.emulated.convolutions import ConvolutionLog
from dnnmem_tune.frontends.torch.emulated.exact import ExactRun, Part
from dnnmem_tune.frontends.torch.emulated.host_values import HostValues
from dnnmem_tune.frontends.torch.emulated.profile import read_profile
from dnnmem_tune.frontends.torch.emulated.ranges import Ranges
from dnnmem_tune.frontends.torch.emulated.trace import Run, make_trace
from dnnmem_tune.ir.trace import MemoryTrace

Build = Callable[..., Callable[[], object]]


def record_job(build: Build, request: RecordRequest, card: LoadedCard, notes: tuple[str, ...] = ()) -> MemoryTrace:
    """Return the trace of ``build`` and of ``request.num_steps`` training steps.

    Raises:
        TypeError: If ``build`` does not return a function.
        torch.OutOfMemoryError: Never because of the card's size: a recorder's card does not run out.

    """
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=1 << 30, context=None)
    host_values = HostValues()
    card.watch_reads(host_values.note)
    convolutions, ranges = ConvolutionLog(card), Ranges()
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    parts: list[tuple[str, int]] = []
    with _steady(), ranges.watching():
        profiler.start()
        step = require_step(build(request.batch_size, torch.device("cuda"), **request.params))
        parts.append(("build", ranges.mark()))
        for index in range(request.num_steps):
            step()
            torch.cuda.synchronize()
            ranges.note_owners()
            gc.collect()
            parts.append((f"step {index}", ranges.mark()))
        profiler.stop()
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    return make_trace(
        Run(
            history=torch.cuda.memory._snapshot()["device_traces"][0],
            profile=read_profile(results.experimental_event_tree()),
            parts=parts,
            owned=ranges.owned,
            scratches=convolutions.scratches,
            host_reads=host_values.places,
            notes=(*host_values.notes(), *notes),
        )
    )


def run_job(build: Build, request: RecordRequest, card: LoadedCard, notes: tuple[str, ...] = ()) -> ExactRun:
    """Return what the allocator itself reports for the job on the card as it is, out of memory included."""
    torch.cuda.init()
    host_values = HostValues()
    card.watch_reads(host_values.note)
    parts: list[Part] = []
    out_of_memory = ""
    with _steady():
        try:
            step = require_step(build(request.batch_size, torch.device("cuda"), **request.params))
            parts.append(_part("build"))
            for index in range(request.num_steps):
                torch.cuda.reset_peak_memory_stats()
                step()
                torch.cuda.synchronize()
                gc.collect()
                parts.append(_part(f"step {index}"))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            out_of_memory = str(error).partition(" If reserved")[0].splitlines()[0]
            parts.append(_part("build" if not parts else f"step {len(parts) - 1}"))
    statistics = torch.cuda.memory_stats()
    return ExactRun(
        batch_size=request.batch_size,
        parts=tuple(parts),
        out_of_memory=out_of_memory,
        peak_device_bytes=card.peak_bytes(),
        num_retries=statistics.get("num_alloc_retries", 0),
        host_reads=dict(host_values.places),
        notes=(*host_values.notes(), *notes),
    )


def require_step(step: Any) -> Callable[[], object]:
    """Return what ``build`` returned if it can be called."""
    if not callable(step):
        raise TypeError(
            f"build must return a function that runs one training step, it returned {type(step).__name__}"
        )
    return step  # type: ignore[no-any-return]  # any callable is taken at its word


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out; cuDNN says so in its own words."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return "unable to find an engine" in str(error) and torch.cuda.memory_stats().get("num_ooms", 0) > 0


@contextmanager
def _steady() -> Iterator[None]:
    """Cyclic garbage would be found at other places in every run: collect it between steps only."""
    gc.collect()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    gc.enable()


def _part(name: str) -> Part:
    return Part(
        name=name,
        peak_allocated_bytes=torch.cuda.max_memory_allocated(),
        peak_reserved_bytes=torch.cuda.max_memory_reserved(),
        allocated_bytes=torch.cuda.memory_allocated(),
        reserved_bytes=torch.cuda.memory_reserved(),
    )
