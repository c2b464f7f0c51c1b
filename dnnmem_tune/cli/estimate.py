"""``dnnmem estimate``: the memory of one job on one card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command, exit_code


@command
def estimate(
    gpu: options.GpuOption = None,
    model: options.ModelOption = None,
    workload: options.WorkloadOption = None,
    batch: Annotated[int | None, options.whole("--batch", "Samples per step.")] = None,
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
    advice: Annotated[
        bool, typer.Option("--advice/--no-advice", help="Estimate what would help a job that does not fit.")
    ] = True,
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", help="Write the run for pytorch.org/memory_viz to this file.")
    ] = None,
    as_json: options.JsonOption = False,
) -> ExitCode:
    """Estimate the GPU memory of a training job, without a GPU.

    Exit code: 0 it fits, 3 it does not, 2 usage, 1 failure.
    """
    from dnnmem_tune.api.arguments import batch_size_of
    from dnnmem_tune.errors import UsageError

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
    name, params, card = job.reference, job.params, options.required_gpu(gpu)
    if batch is None:
        raise UsageError("no batch size is given; pass --batch 32, or find the largest with dnnmem maxbatch")
    size = batch_size_of(batch)
    with job.session() as session:
        answer = session.estimate(size, card, params)
        if snapshot is not None:
            _write_snapshot(session.snapshot(size, card, params), snapshot)
        remedies = session.remedies(size, card, params) if advice and answer.fits is False else ()
    if as_json:
        from dnnmem_tune.reporting.document import estimate_document

        options.print_json(estimate_document(answer, workload=name, params=params, remedies=remedies))
        return exit_code(answer.fits)
    from dnnmem_tune.reporting.text import TextReport

    report = TextReport()
    report.estimate(answer, workload=name, params=params)
    report.lines(job.remarks())
    if snapshot is not None:
        report.lines([f"The snapshot is in {snapshot}; drop it on https://pytorch.org/memory_viz"])
    if advice and answer.fits is False:
        report.remedies(remedies, f"batch {size}")
    return exit_code(answer.fits)


def _write_snapshot(document: dict[str, Any], path: Path) -> None:
    import pickle

    from dnnmem_tune.errors import UsageError

    try:
        path.write_bytes(pickle.dumps(document))
    except OSError as error:
        raise UsageError(f"the snapshot {path} cannot be written ({error.strerror}); name another file") from error
