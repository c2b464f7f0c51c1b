"""``dnnmem dryrun``: the user's own program on an emulated card."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command, exit_code
from dnnmem_tune.errors import TraceError, UsageError, WorkloadError
from dnnmem_tune.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dnnmem_tune.decisions.batch_size import BatchSizeResult, Outcome
    from dnnmem_tune.emulator.card import Card
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.frontends.torch.emulated.dryrun.launch import DryRun
    from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Place, ProcessOutcome
    from dnnmem_tune.frontends.torch.emulated.dryrun.warm import WarmRunner


@command
def dryrun(
    words: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="As you start it: -- python train.py ...")
    ],
    gpu: options.GpuOption = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=64, help="Cards in the emulated machine.")] = 1,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimizer steps until the program is stopped.")
    ] = 3,
    find: Annotated[
        str | None,
        typer.Option(
            "--find", metavar="NAME=OPTION", help="Vary an argument of the program: batch_size=--batch-size."
        ),
    ] = None,
    maximum: Annotated[int, typer.Option("--max", min=1, help="Largest value that --find tries.")] = 1 << 20,
    conv_workspace: options.ConvWorkspaceOption = "none",
    snapshot: Annotated[
        Path | None,
        typer.Option("--snapshot", help="Leave PyTorch's memory snapshot here (pytorch.org/memory_viz)."),
    ] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds that one run may take.")] = 300.0,
    memory_limit: Annotated[
        str, typer.Option("--memory-limit", help="Host memory that one run may take, such as 16GiB.")
    ] = "16GiB",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show what the program prints.")] = False,
    as_json: options.JsonOption = False,
) -> ExitCode:
    """Run a training program, unmodified, on an emulated card until it has done a few steps.

    PyTorch itself runs, with its own allocator; kernels do nothing, and every value read from the card is
    zero. Exit code: 0 it fits, 3 it does not, 2 usage, 1 failure.
    """
    from dnnmem_tune.config import find_device
    from dnnmem_tune.frontends.torch.emulated.dryrun.launch import DryRun
    from dnnmem_tune.operators.convolution import MODELS
    from dnnmem_tune.units import parse_bytes

    if conv_workspace not in MODELS:
        raise UsageError(f"--conv-workspace {conv_workspace!r} is not known; choose one of {', '.join(MODELS)}")
    device = find_device(options.required_gpu(gpu))
    plan = DryRun(
        card=emulated_card(device, gpus),
        num_steps=steps,
        conv_workspace=conv_workspace,
        time_limit=time_limit,
        memory_limit=parse_bytes(memory_limit),
        snapshot=snapshot,
    )
    if find is not None:
        return _find(words, plan, device, find, maximum, as_json)
    return _run_once(words, plan, device, quiet or as_json, as_json)


def emulated_card(device: DeviceProfile, num_cards: int = 1) -> Card:
    """Return the emulated card that stands for ``device``; what others hold of it counts as context."""
    from dnnmem_tune.emulator.card import Card

    return Card(
        name=device.name,
        total_bytes=device.total_bytes,
        context_bytes=device.context_bytes + device.occupied_bytes,
        compute_capability=device.compute_capability,
        num_sms=device.num_sms,
        threads_per_sm=device.threads_per_sm,
        num_cards=num_cards,
    )


def _run_once(words: Sequence[str], plan: DryRun, device: DeviceProfile, quiet: bool, as_json: bool) -> ExitCode:
    from dnnmem_tune.frontends.torch.emulated.dryrun.launch import run_dry

    show: Callable[[str], None] | None = None if quiet else (lambda line: typer.echo(f"| {line}", err=True))
    outcomes = run_dry(words, plan, show=show)
    fits = _fits(outcomes)
    if as_json:
        options.print_json(
            {
                "command": list(words),
                "gpu": device.name,
                "total_bytes": device.total_bytes,
                "fits": fits,
                "processes": [dataclasses.asdict(outcome) for outcome in outcomes],
            }
        )
        return exit_code(fits)
    for outcome in outcomes:
        for line in _describe(outcome, plan, device, with_rank=len(outcomes) > 1):
            typer.echo(line)
    return exit_code(fits)


def _find(
    words: Sequence[str], plan: DryRun, device: DeviceProfile, find: str, maximum: int, as_json: bool
) -> ExitCode:
    from dnnmem_tune.decisions.batch_size import largest_batch
    from dnnmem_tune.frontends.torch.emulated.dryrun.command import with_argument
    from dnnmem_tune.frontends.torch.emulated.dryrun.warm import WarmRunner

    name, equals, option = find.partition("=")
    if find.startswith("-") or not equals or not option:
        name, option = find.lstrip("-").rstrip("="), find
    if not name or not option.strip("-="):
        raise UsageError(f"--find {find!r} names no argument; write --find batch_size=--batch-size")

    with WarmRunner(plan) as runner:

        def probe(value: int) -> Outcome:
            outcome = _probe(runner, with_argument(words, option, value), device)
            typer.echo(f"{name}={value}: {outcome.reason}", err=True)
            return outcome

        result = largest_batch(probe, maximum=maximum, num_neighbours=2, searched=name)
    if as_json:
        options.print_json(_found_document(result, words, device))
    else:
        typer.echo(
            f"{name}: {result.largest_batch if result.largest_batch is not None else 'none fits'} on {device.name}"
        )
        typer.echo(result.reason)
        if result.also_fit_above:
            typer.echo(f"also fit, above one that does not: {', '.join(map(str, result.also_fit_above))}")
    return exit_code(result.largest_batch is not None)


def _probe(runner: WarmRunner, words: Sequence[str], device: DeviceProfile) -> Outcome:
    from dnnmem_tune.decisions.batch_size import CannotRun
    from dnnmem_tune.decisions.verdict import Verdict

    try:
        outcomes = runner.run(words)
    except WorkloadError as error:
        return CannotRun(str(error))
    except TraceError as error:
        return Verdict.unknown(str(error), limit_bytes=device.total_bytes)
    match _fits(outcomes):
        case True:
            peak = max(outcome.peak_device_bytes for outcome in outcomes)
            return Verdict.fits(peak_bytes=peak, limit_bytes=device.total_bytes)
        case False:
            failed = next(outcome for outcome in outcomes if outcome.message)
            # A lower bound of what it takes: enough to guess the next value from.
            least = max(device.total_bytes + 1, failed.peak_device_bytes + failed.missing_bytes)
            verdict = Verdict.exceeds(peak_bytes=least, limit_bytes=device.total_bytes)
            return dataclasses.replace(verdict, reason=failed.message)
        case None:
            return Verdict.unknown(
                "the program ended before its first optimizer step", limit_bytes=device.total_bytes
            )


def _fits(outcomes: Sequence[ProcessOutcome]) -> bool | None:
    """A program that never did a step has shown nothing."""
    from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Ending

    if any(outcome.ending is Ending.OUT_OF_MEMORY for outcome in outcomes):
        return False
    return True if any(outcome.num_steps for outcome in outcomes) else None


def _found_document(result: BatchSizeResult, words: Sequence[str], device: DeviceProfile) -> dict[str, Any]:
    return {
        "command": list(words),
        "gpu": device.name,
        "searched": result.searched,
        "largest": result.largest_batch,
        "first_too_large": result.first_too_large,
        "also_fit_above": list(result.also_fit_above),
        "reason": result.reason,
        "probes": [
            {"value": probe.value, "fits": probe.fits, "reason": probe.outcome.reason} for probe in result.probes
        ],
    }


def _describe(outcome: ProcessOutcome, plan: DryRun, device: DeviceProfile, *, with_rank: bool) -> list[str]:
    from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Ending

    who = f"rank {outcome.rank}: " if with_rank else ""
    verdicts = {
        Ending.OUT_OF_MEMORY: f"{who}does not fit {device.name}: {outcome.message}{_at(outcome.place)}",
        Ending.STEPS: f"{who}fits {device.name}: {outcome.num_steps} steps done",
        Ending.FINISHED: f"{who}the program ended after {outcome.num_steps} of {plan.num_steps} steps",
        Ending.RAISED: f"{who}the program ended with {outcome.message}{_at(outcome.place)}",
    }
    lines = [verdicts[outcome.ending]]
    if not outcome.phases:
        return [*lines, "  it never used the card"]
    lines.append(
        f"  peak: {format_bytes(outcome.peak_allocated_bytes)} allocated, "
        f"{format_bytes(outcome.peak_reserved_bytes)} reserved, {format_bytes(outcome.peak_device_bytes)} of the "
        f"card's {format_bytes(device.total_bytes)} in {outcome.peak_phase}{_at(outcome.peak_place)}"
    )
    lines += [
        f"  {phase.name:<18} {format_bytes(phase.allocated_bytes):>12} allocated "
        f"{format_bytes(phase.reserved_bytes):>12} reserved"
        for phase in outcome.phases
    ]
    if outcome.num_retries:
        lines.append(f"  the cache had to be emptied {outcome.num_retries} times to go on")
    if outcome.host_reads:
        reads = ", ".join(f"{place} ({count})" for place, count in sorted(outcome.host_reads.items()))
        lines.append(f"  values read on the host, all of them zero here: {reads}")
    lines += [f"  note: {note}" for note in outcome.notes]
    if outcome.snapshot:
        lines.append(f"  snapshot: {outcome.snapshot}")
    return lines


def _at(place: Place | None) -> str:
    if place is None:
        return ""
    source = f": {place.source}" if place.source else ""
    return f", at {place.file}:{place.line}{source}"
