"""Answers for a person: tables on a terminal, plain aligned lines elsewhere.

The metric stands beside every number, since the same job has four peaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dnnmem_tune.decisions.accumulation import AccumulationPlan
from dnnmem_tune.decisions.batch_size import BatchSizeResult
from dnnmem_tune.decisions.comparison import ComparedDevice, Comparison
from dnnmem_tune.decisions.remedies import Remedy
from dnnmem_tune.decisions.verdict import verdict_of
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.estimate.report import Breakdown, MemoryEstimate
from dnnmem_tune.reporting.words import job_line, notes_on, provenance_line
from dnnmem_tune.units import format_bytes

_PLAIN_WIDTH = 160
"""Columns where the output is no terminal: wide enough that no line is broken for a program to mend."""

_MODULES_SHOWN = 5

_STYLES = {True: "bold green", False: "bold red", None: "bold yellow"}
_ANSWERS = {True: "fits", False: "does not fit", None: "is not known to fit"}


class TextReport:
    """Writes answers to a console.

    Args:
        console: Where to; None for standard output.

    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH

    def estimate(self, estimate: MemoryEstimate, *, workload: str, params: Mapping[str, Any]) -> None:
        """Write one estimate."""
        self._say(job_line(workload, params, estimate.device), "bold")
        answer = f"Batch {estimate.batch_size} {_ANSWERS[estimate.fits]}"
        self._say(f"{answer}: {verdict_of(estimate).reason}.", _STYLES[estimate.fits])
        self._details(estimate)

    def batch_size(
        self,
        result: BatchSizeResult,
        device: DeviceProfile,
        *,
        workload: str,
        params: Mapping[str, Any],
        batch_size: int | None = None,
    ) -> None:
        """Write what a search found."""
        self._say(job_line(workload, params, device), "bold")
        name = "batch" if result.searched == "batch_size" else f"{result.searched} at batch {batch_size}"
        if result.largest_batch is None:
            self._say(f"No {name} is known to fit: {result.reason}.", _STYLES[False])
        else:
            self._say(f"Largest {name} that fits: {result.largest_batch}", _STYLES[True])
            beyond = result.first_too_large
            first = f"First that does not fit: {beyond}" if beyond is not None else ""
            for line in filter(None, (first, f"Why: {result.reason}.")):
                self._say(line)
        for line in _remarks(result, name):
            self._say(line, "yellow")
        self._plans(result.plans)
        if result.estimate is not None:
            value = f"batch {batch_size}, {result.searched} " if batch_size is not None else "batch "
            self._details(result.estimate, title=f"Memory at {value}{result.largest_batch}")

    def remedies(self, remedies: Sequence[Remedy], what: str) -> None:
        """Write what would help a job that does not fit; ``what`` names the job."""
        self._say("")
        if not remedies:
            self._say(f"Nothing was found that would make {what} fit.")
            return
        table = self._table(f"What would help {what} (each estimated)", "change", "device peak", "alone")
        for remedy in remedies:
            peak = remedy.verdict.peak_bytes
            enough = Text("enough", "green") if remedy.enough else Text("not enough", "yellow")
            table.add_row(remedy.change.text, format_bytes(peak) if peak is not None else "?", enough)
        self._show(table)

    def comparison(self, comparison: Comparison, *, workload: str, params: Mapping[str, Any]) -> None:
        """Write what each card can do."""
        given = ", ".join(f"{name}={value!r}" for name, value in params.items())
        at = "the largest batch" if comparison.batch_size is None else f"batch {comparison.batch_size}"
        self._say(
            f"{workload}{f' with {given}' if given else ''}: {at} on {len(comparison.devices)} cards", "bold"
        )
        smallest = comparison.smallest
        if smallest is None:
            self._say("None of these cards is known to fit it.", _STYLES[False])
        else:
            self._say(f"Smallest card that fits: {smallest.device.name}", _STYLES[True])
        answer = "largest batch" if comparison.batch_size is None else "verdict"
        table = self._table("", "card", answer, "reserved peak", "device peak", "limit", "headroom", "remark")
        for compared in comparison.devices:
            table.add_row(*_compared_cells(compared))
        self._show(table)

    def devices(self, devices: Iterable[DeviceProfile]) -> None:
        """Write the catalogue."""
        table = self._table(
            "", "name", "memory (as CUDA reports it)", "CUDA context", "capability", "SMs", "also called"
        )
        for device in devices:
            context = f"{format_bytes(device.context_bytes)} ± {format_bytes(device.context_uncertainty_bytes)}"
            capability = "{}.{}".format(*device.compute_capability)
            table.add_row(
                device.name,
                format_bytes(device.total_bytes),
                context,
                capability,
                str(device.num_sms),
                ", ".join(device.aliases),
            )
        self._show(table)

    def lines(self, lines: Iterable[str], style: str = "") -> None:
        """Write sentences."""
        for line in lines:
            self._say(line, style)

    def rows(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a table of text."""
        table = self._table(title, *columns)
        for row in rows:
            table.add_row(*row)
        self._show(table)

    def _details(self, estimate: MemoryEstimate, title: str = "Memory") -> None:
        self._say("")
        self._peaks(estimate, title)
        self._breakdown(estimate.breakdown())
        interval = estimate.interval()
        low, high = format_bytes(interval.low_bytes), format_bytes(interval.high_bytes)
        self._say(f"The device peak lies between {low} and {high}, as far as is known:")
        for reason in interval.reasons:
            span = f"-{format_bytes(reason.below_bytes)} / +{format_bytes(reason.above_bytes)}"
            self._say(f"  {reason.cause}: {span}; {reason.text}")
        for note in notes_on(estimate):
            self._say(f"Note: {note}", "yellow")
        self._say(f"Source: {provenance_line(estimate)}", "dim")

    def _peaks(self, estimate: MemoryEstimate, title: str) -> None:
        table = self._table(title, "peak", "size", "what it is")
        for name, nbytes, meaning in (
            ("requested", estimate.peak_requested_bytes, _words(estimate)[0]),
            ("allocated", estimate.peak_allocated_bytes, _words(estimate)[1]),
            ("reserved", estimate.peak_reserved_bytes, _words(estimate)[2]),
            ("device", estimate.peak_device_bytes, "reserved and the CUDA context: what nvidia-smi shows"),
            ("limit", estimate.limit_bytes, "what the job may take of the device"),
            ("headroom", estimate.headroom_bytes, "limit less device peak"),
        ):
            table.add_row(name, format_bytes(nbytes), meaning)
        self._show(table)

    def _breakdown(self, breakdown: Breakdown) -> None:
        where = f" in {breakdown.module}" if breakdown.module else ""
        title = f"What takes it at the allocated peak ({breakdown.operation}{where})"
        table = self._table(title, "category", "size", "share of device")
        parts = [(str(category), nbytes) for category, nbytes in breakdown.categories.items()]
        parts += [
            ("internal fragmentation", breakdown.internal_fragmentation_bytes),
            ("allocator reservation", breakdown.allocator_reservation_bytes),
            ("CUDA context", breakdown.context_bytes),
        ]
        total = max(1, breakdown.device_bytes)
        for name, nbytes in sorted(parts, key=lambda part: -part[1]):
            if nbytes:
                table.add_row(name, format_bytes(nbytes), f"{100 * nbytes / total:.1f} %")
        self._show(table)
        named = [(module, nbytes) for module, nbytes in breakdown.modules.items() if module][:_MODULES_SHOWN]
        if named:
            listed = ", ".join(f"{module} {format_bytes(nbytes)}" for module, nbytes in named)
            self._say(f"Modules with the most memory then: {listed}")

    def _plans(self, plans: Sequence[AccumulationPlan]) -> None:
        for plan in plans:
            self._say(f"For batch {plan.target_batch}: {plan.text}.", "bold" if plan is plans[0] else "")
        if plans and plans[0].steps > 1 and not plans[0].traced:
            self._say(
                "Note: the micro-batch was estimated without accumulation. Gradients that outlive a micro-batch "
                "can add up to the size of the weights.",
                "yellow",
            )

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=not self._console.is_terminal)

    def _table(self, title: str, *columns: str) -> Table:
        terminal = self._console.is_terminal
        if title:
            self._say(title, "bold")
        table = Table(
            box=box.SIMPLE_HEAD if terminal else None,
            header_style="bold" if terminal else "",
            pad_edge=False,
        )
        for column in columns:
            right = column in ("size", "device peak", "reserved peak", "limit", "headroom", "SMs", "largest batch")
            table.add_column(column, justify="right" if right else "left", overflow="fold")
        return table

    def _show(self, table: Table) -> None:
        if self._console.is_terminal:
            self._console.print(table)
            return
        with self._console.capture() as capture:
            self._console.print(table)
        for line in capture.get().splitlines():
            self._say(line.rstrip())
        self._say("")


def _remarks(result: BatchSizeResult, name: str) -> list[str]:
    remarks = []
    probed = {probe.value: probe for probe in result.probes}
    smallest = result.smallest_runnable
    refused = [value for value, probe in probed.items() if not probe.runs]
    if refused and smallest is not None:
        first = min(refused)
        reason = probed[first].outcome.reason
        only = f", and then at every {result.step}th" if result.step > 1 else ""
        remarks.append(f"Smallest {name} that runs: {smallest}{only} (at {first}: {reason})")
    if result.also_fit_above:
        listed = ", ".join(str(value) for value in result.also_fit_above)
        remarks.append(
            f"Memory is not monotone here: {listed} would fit as well, "
            f"beyond {result.first_too_large}, which does not"
        )
    elif not result.monotone:
        worse = min(probe.value for probe in result.probes if probe.exceeds)
        remarks.append(f"Memory is not monotone here: {worse} does not fit, although larger values do")
    return remarks


def _compared_cells(compared: ComparedDevice) -> list[str | Text]:
    verdict, estimate = compared.verdict, compared.estimate
    limit, headroom = verdict.limit_bytes, verdict.headroom_bytes
    if compared.largest is not None:
        largest = compared.largest.largest_batch
        answer = Text(str(largest) if largest is not None else "none", _STYLES[compared.fits])
    else:
        answer = Text(str(verdict.state), _STYLES[{"fits": True, "exceeds": False}.get(str(verdict.state))])
    device = verdict.peak_bytes
    return [
        compared.device.name,
        answer,
        format_bytes(estimate.peak_reserved_bytes) if estimate is not None else "",
        format_bytes(device) if device is not None else "",
        format_bytes(limit) if limit is not None else "",
        format_bytes(headroom) if headroom is not None else "",
        verdict.reason if verdict.state == "unknown" else "",
    ]


def _words(estimate: MemoryEstimate) -> tuple[str, str, str]:
    """Say what requested, allocated and reserved are in the words of the framework."""
    if estimate.provenance.framework.startswith("tensorflow"):
        return (
            "what TensorFlow asks its allocator for",
            "in chunks handed out: the peak of tf.config.experimental.get_memory_info",
            "what of the allocator's pool is reached; without memory growth nvidia-smi shows all of it",
        )
    return (
        "what PyTorch asks its allocator for",
        "in blocks handed out: torch.cuda.max_memory_allocated",
        "held by the allocator: torch.cuda.max_memory_reserved",
    )
