"""``dnnmem maxbatch`` and ``dnnmem-maxbatch``: the largest batch that fits a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command

if TYPE_CHECKING:
    from dnnmem_tune.decisions.remedies import Remedy


@command
def maxbatch(
    gpu: options.GpuOption = None,
    model: options.ModelOption = None,
    workload: options.WorkloadOption = None,
    minimum: Annotated[int, options.whole("--min", "Smallest value allowed.")] = 1,
    maximum: Annotated[int | None, options.whole("--max", "Largest value allowed.")] = None,
    multiple_of: Annotated[int, options.whole("--multiple-of", "Only multiples of it are answers.")] = 1,
    power_of_two: Annotated[bool, typer.Option("--power-of-two", help="Only powers of two are answers.")] = False,
    target_batch: Annotated[
        int | None,
        options.whole("--target-batch", "A batch that is wanted; say which micro-batches make it."),
    ] = None,
    searched: Annotated[
        str, typer.Option("--for", metavar="NAME", help="Search this hyperparameter instead, at --batch.")
    ] = "batch_size",
    batch: Annotated[int | None, options.whole("--batch", "The fixed batch size for --for.")] = None,
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
    as_json: options.JsonOption = False,
) -> ExitCode:
    """Find the largest batch of a training job that fits a GPU, without a GPU.

    Exit code: 0 one fits, 3 none does, 2 usage, 1 failure.
    """
    from dnnmem_tune.api import Bounds
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
    name, params, card = job.reference, job.params, options.required_gpu(gpu)
    bounds = Bounds(minimum=minimum, maximum=maximum, multiple_of=multiple_of, power_of_two=power_of_two)
    fixed = _fixed_batch(searched, batch, target_batch)
    with job.session() as session:
        device = session.device(card)
        if fixed is None:
            result = session.max_batch_size(device, params, bounds=bounds, target_batch=target_batch)
        else:
            result = session.largest_value(searched, batch_size_of(fixed), device, params, bounds=bounds)
        too_large = result.first_too_large
        remedies: tuple[Remedy, ...] = ()
        if advice and result.largest_batch is None and too_large is not None:
            changed = params if fixed is None else {**params, searched: too_large}
            remedies = session.remedies(too_large if fixed is None else fixed, device, changed)
    code = _exit_code(result.largest_batch, too_large)
    if as_json:
        from dnnmem_tune.reporting.document import batch_size_document

        options.print_json(
            batch_size_document(result, device, workload=name, params=params, batch_size=fixed, remedies=remedies)
        )
        return code
    from dnnmem_tune.reporting.text import TextReport

    report = TextReport()
    report.batch_size(result, device, workload=name, params=params, batch_size=fixed)
    report.lines(job.remarks())
    if code is ExitCode.EXCEEDS and advice:
        report.remedies(remedies, f"{'batch' if fixed is None else searched} {too_large}")
    return code


def _fixed_batch(searched: str, batch: int | None, target_batch: int | None) -> int | None:
    """Return the batch size at which another hyperparameter is searched; None where the batch size is."""
    from dnnmem_tune.errors import UsageError

    if searched in ("batch_size", "batch"):
        if batch is not None:
            raise UsageError("--batch fixes what is searched; drop it, or search something else with --for NAME")
        return None
    if batch is None:
        raise UsageError(f"--for {searched} searches at a fixed batch size; pass it as --batch")
    if target_batch is not None:
        raise UsageError("--target-batch is a wanted batch size; it means nothing with --for")
    return batch


def _exit_code(largest: int | None, first_too_large: int | None) -> ExitCode:
    if largest is not None:
        return ExitCode.FITS
    return ExitCode.EXCEEDS if first_too_large is not None else ExitCode.FAILURE
