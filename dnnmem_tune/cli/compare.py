"""``dnnmem compare``: one job on several cards, and the smallest that fits."""

from __future__ import annotations

from typing import Annotated

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command


@command
def compare(
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="CARD", help="A card; repeat. Without any: the whole catalogue."),
    ] = None,
    model: options.ModelOption = None,
    workload: options.WorkloadOption = None,
    batch: Annotated[
        int | None,
        options.whole("--batch", "Samples per step; without it, the largest for each card."),
    ] = None,
    settings: options.SetOption = None,
    precision: options.PrecisionOption = None,
    optimizer: options.OptimizerOption = None,
    input_size: options.InputSizeOption = None,
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
    """Compare what several GPUs can do with a training job: the smallest that fits.

    Exit code: 0 one fits, 3 none does, 2 usage, 1 failure.
    """
    from dnnmem_tune.api.arguments import batch_size_of

    job = options.Job(
        model=model,
        workload=workload,
        settings=settings,
        precision=precision,
        optimizer=optimizer,
        input_size=input_size,
        framework=framework,
        dims=dims,
        train_as=train_as,
        recorder=recorder,
        conv_workspace=conv_workspace,
        alloc_conf=alloc_conf,
        safety=safety,
        cache=cache,
        cache_dir=cache_dir,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    name, params = job.reference, job.params
    size = batch_size_of(batch) if batch is not None else None
    with job.session() as session:
        comparison = session.compare(gpus or None, params, batch_size=size)
    if as_json:
        from dnnmem_tune.reporting.document import comparison_document

        options.print_json(comparison_document(comparison, workload=name, params=params))
    else:
        from dnnmem_tune.reporting.text import TextReport

        report = TextReport()
        report.comparison(comparison, workload=name, params=params)
        report.lines(job.remarks())
    if comparison.smallest is not None:
        return ExitCode.FITS
    unknown = any(card.verdict.state == "unknown" for card in comparison.devices)
    return ExitCode.FAILURE if unknown else ExitCode.EXCEEDS
