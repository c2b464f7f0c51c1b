"""``dnnmem space``: how much of a search space fits a card, before the search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command
from dnnmem_tune.errors import UsageError

if TYPE_CHECKING:
    from dnnmem_tune.decisions.space_report import SpaceReport, SurveyedConfiguration

_CONFIGURATIONS_SHOWN = 12


@command
def space(
    path: Annotated[
        Path, typer.Argument(metavar="SPACE.toml", help="The search space; configs/spaces has samples.")
    ],
    gpu: options.GpuOption = None,
    model: options.ModelOption = None,
    workload: options.WorkloadOption = None,
    settings: options.SetOption = None,
    samples: Annotated[
        int, options.whole("--samples", "Configurations to trace; all of them if the space has no more.")
    ] = 64,
    batches: Annotated[int, options.whole("--batches", "Batch sizes to judge for each; they cost no trace.")] = 32,
    seed: Annotated[int, options.whole("--seed", "For the draw.")] = 0,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the reduced space there, as TOML.")
    ] = None,
    safety: options.SafetyOption = None,
    conv_workspace: options.ConvWorkspaceOption = "none",
    alloc_conf: options.AllocConfOption = None,
    framework: options.FrameworkOption = "torch",
    dims: options.DimOption = None,
    train_as: options.TrainAsOption = None,
    recorder: options.RecorderOption = "auto",
    cache: options.CacheOption = False,
    cache_dir: options.CacheDirOption = None,
    time_limit: options.TimeLimitOption = None,
    memory_limit: options.MemoryLimitOption = None,
    as_json: options.JsonOption = False,
) -> ExitCode:
    """Say how much of a search space fits a GPU, which parameters decide, and what is left of it.

    Exit code: 0 some of it fits, 3 none does, 2 usage, 1 failure or not known.
    """
    from dnnmem_tune.guard import MemoryGuard
    from dnnmem_tune.guard.space_file import read_space, write_space
    from dnnmem_tune.guard.survey import survey
    from dnnmem_tune.units import parse_bytes

    file = read_space(path)
    job = options.Job(
        model=model,
        workload=workload if workload is not None or model is not None else file.workload,
        settings=settings,
        safety=safety,
        conv_workspace=conv_workspace,
        alloc_conf=alloc_conf,
        framework=framework,
        dims=dims,
        train_as=train_as,
        recorder=recorder,
        cache=cache,
        cache_dir=cache_dir,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    searched = replace(file.space, constants={**file.space.constants, **job.params})
    with (
        options.progress() as say,
        MemoryGuard(
            job.reference,
            gpu=options.required_gpu(gpu or file.gpu),
            batch_param=searched.batch_param,
            cache_dir=job.cache_dir or (options.user_cache() if job.cache else None),
            safety=job.safety,
            conv_workspace=job.conv_workspace,
            alloc_conf=job.allocator[0],
            framework=job.framework,
            recorder=job.recorder,
            time_limit=job.time_limit,
            memory_limit=parse_bytes(job.memory_limit) if job.memory_limit is not None else None,
        ) as guard,
    ):
        say(f"tracing up to {samples} configurations of {job.reference}")
        report = survey(guard, searched, num_configurations=samples, num_batch_sizes=batches, seed=seed)
    if report.share_unknown == 1:
        raise UsageError(f"no configuration could be judged: {report.reasons_unknown[0]}")
    if write is not None:
        write.write_text(write_space(report.reduced), encoding="utf-8")
    if as_json:
        options.print_json(_document(report, job.reference, guard.gpus[0]))
    else:
        _print(report, job, guard.gpus[0])
    return ExitCode.FITS if report.share_fitting > 0 else ExitCode.EXCEEDS


def _print(report: SpaceReport, job: options.Job, gpu: str) -> None:
    from dnnmem_tune.guard.space_file import write_space
    from dnnmem_tune.reporting.text import TextReport

    text = TextReport()
    low, high = report.interval
    judged = f"{len(report.configurations)} configurations of {job.reference} on {gpu}"
    text.lines([f"{report.share_fitting:.0%} of the space fits ({low:.0%} to {high:.0%}; {judged})"], "bold")
    if report.share_unknown:
        text.lines([f"{report.share_unknown:.0%} of it cannot be judged: {report.reasons_unknown[0]}"], "yellow")
    text.rows(
        "What decides: the share of the differences in memory that a parameter explains, and what of it fits",
        ("parameter", "explains", "share that fits, by value"),
        [
            (
                driver.name,
                "nothing (traced)" if driver.inert else f"{driver.effect:.0%}",
                "  ".join(f"{label}: {share:.0%}" for label, share in driver.fitting),
            )
            for driver in report.drivers
        ],
    )
    rows = sorted(report.configurations, key=lambda surveyed: -(surveyed.largest_batch or 0))
    text.rows(
        f"Largest batch of {min(len(rows), _CONFIGURATIONS_SHOWN)} configurations (--json has all)",
        ("largest batch that fits", "largest in the space", "configuration"),
        [_configuration_cells(surveyed) for surveyed in rows[:: -(-len(rows) // _CONFIGURATIONS_SHOWN)]],
    )
    text.lines(["", "Without the values at which nothing fits:"])
    text.lines(write_space(report.reduced).splitlines())
    text.lines(job.remarks())


def _configuration_cells(surveyed: SurveyedConfiguration) -> tuple[str, str, str]:
    params = ", ".join(f"{name}={_short(value)}" for name, value in surveyed.params.items())
    largest, within = surveyed.largest_batch, surveyed.largest_in_space
    return (str(largest or "none"), str(within or "none"), params)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _document(report: SpaceReport, workload: str, gpu: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "command": "space",
        "workload": workload,
        "gpu": gpu,
        "share_fitting": report.share_fitting,
        "share_fitting_interval": list(report.interval),
        "share_unknown": report.share_unknown,
        "reasons_unknown": list(report.reasons_unknown),
        "drivers": [
            {
                "parameter": driver.name,
                "effect": driver.effect,
                "inert": driver.inert,
                "share_fitting_by_value": [{"value": label, "share": share} for label, share in driver.fitting],
            }
            for driver in report.drivers
        ],
        "configurations": [
            {
                "params": dict(surveyed.params),
                "largest_batch": surveyed.largest_batch,
                "largest_batch_in_space": surveyed.largest_in_space,
            }
            for surveyed in report.configurations
        ],
        "reduced_space": {name: _parameter_document(kind) for name, kind in report.reduced.parameters.items()},
    }


def _parameter_document(kind: Any) -> dict[str, Any]:
    from dnnmem_tune.decisions.space import Choices

    if isinstance(kind, Choices):
        return {"values": list(kind.options)}
    return {"low": kind.low, "high": kind.high, "step": kind.step, "log": kind.log}
