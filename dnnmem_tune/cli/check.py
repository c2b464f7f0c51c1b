"""``dnnmem check``: run the job on this machine's GPU and compare all four peaks with the estimate."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

from dnnmem_tune.cli import options
from dnnmem_tune.cli.outcome import ExitCode, command

if TYPE_CHECKING:
    from dnnmem_tune.estimate.devices import DeviceProfile
    from dnnmem_tune.estimate.report import MemoryEstimate

_PEAKS = ("requested_bytes", "allocated_bytes", "reserved_bytes", "device_bytes")


@command
def check(
    model: options.ModelOption = None,
    workload: options.WorkloadOption = None,
    batch: Annotated[int | None, options.whole("--batch", "Samples per step.")] = None,
    steps: Annotated[int, options.whole("--steps", "Training steps to run.")] = 3,
    settings: options.SetOption = None,
    precision: options.PrecisionOption = None,
    optimizer: options.OptimizerOption = None,
    input_size: options.InputSizeOption = None,
    conv_workspace: options.ConvWorkspaceOption = "none",
    alloc_conf: options.AllocConfOption = None,
    recorder: options.RecorderOption = "auto",
    cache: options.CacheOption = False,
    cache_dir: options.CacheDirOption = None,
    time_limit: options.TimeLimitOption = None,
    memory_limit: options.MemoryLimitOption = None,
    as_json: options.JsonOption = False,
) -> ExitCode:
    """Run a PyTorch training job on this machine's GPU and compare its memory with the estimate.

    Exit code: 0 it ran, 3 it ran out of memory, 2 usage, 1 failure, as where there is no GPU.
    """
    from dnnmem_tune.api.arguments import batch_size_of, whole_number
    from dnnmem_tune.errors import UsageError

    job = options.Job(
        model=model,
        workload=workload,
        settings=settings,
        precision=precision,
        optimizer=optimizer,
        input_size=input_size,
        recorder=recorder,
        conv_workspace=conv_workspace,
        alloc_conf=alloc_conf,
        cache=cache,
        cache_dir=cache_dir,
        time_limit=time_limit,
        memory_limit=memory_limit,
    )
    name, params = job.reference, job.params
    if batch is None:
        raise UsageError("no batch size is given; pass --batch 32")
    size = batch_size_of(batch)
    request = {"workload": name, "params": params, "batch_size": size, "num_steps": whole_number(steps, "--steps")}
    with options.progress() as say:
        say(f"running {name} at batch {size} on the GPU")
        measured = _run_on_gpu(request, job.allocator[0], time_limit)
    device = _device(measured["gpu"])
    with job.session() as session:
        answer = session.estimate(size, device, params)
    rows = _compare(answer, measured)
    code = ExitCode.EXCEEDS if measured["out_of_memory"] else ExitCode.FITS
    if as_json:
        options.print_json(_document(name, params, answer, measured, rows))
        return code
    _print(name, params, answer, measured, rows)
    return code


def _run_on_gpu(request: dict[str, Any], alloc_conf: str | None, time_limit: float | None) -> dict[str, Any]:
    """Run the job in a process of its own and return what it measured.

    Raises:
        WorkloadError: If there is no GPU, or the job does not end as it should.
        MissingPackageError: If PyTorch is not installed.

    """
    from dnnmem_tune.errors import MissingPackageError, WorkloadError

    try:
        done = subprocess.run(
            [sys.executable, "-m", "dnnmem_tune.cli.gpu_run"],
            input=json.dumps({**request, "alloc_conf": alloc_conf}),
            stdout=subprocess.PIPE,
            text=True,
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkloadError(
            f"the run on the GPU did not end within {time_limit:g} seconds (--time-limit)"
        ) from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise WorkloadError(f"the run on the GPU died without an answer (exit code {done.returncode})") from error
    match answer:
        case {"missing": message}:
            raise MissingPackageError(message)
        case {"error": message}:
            raise WorkloadError(message)
    return answer


def _device(gpu: dict[str, Any]) -> DeviceProfile:
    from dnnmem_tune.estimate.devices import DeviceProfile, threads_per_sm, typical_context

    major, minor = gpu["compute_capability"]
    threads = threads_per_sm((major, minor))
    context_bytes, uncertainty_bytes = typical_context(gpu["num_sms"], threads)
    return DeviceProfile(
        name=gpu["name"],
        total_bytes=gpu["total_bytes"],
        context_bytes=context_bytes,
        context_uncertainty_bytes=uncertainty_bytes,
        compute_capability=(major, minor),
        num_sms=gpu["num_sms"],
        threads_per_sm=threads,
        occupied_bytes=gpu["occupied_bytes"] or 0,
        source="total: this machine's card; context: estimated from the number of multiprocessors",
    )


def _compare(
    estimate: MemoryEstimate, measured: dict[str, Any]
) -> list[tuple[str, int, int | None, float | None]]:
    """Return for each peak: its name, the estimate and the measurement in bytes, and the relative error."""
    from dnnmem_tune.reporting.document import peaks_of

    estimated = peaks_of(estimate)
    rows: list[tuple[str, int, int | None, float | None]] = []
    for peak in _PEAKS:
        found: int | None = measured["peaks"][peak]
        rows.append((peak, estimated[peak], found, estimated[peak] / found - 1 if found else None))
    return rows


def _document(
    workload: str,
    params: dict[str, Any],
    estimate: MemoryEstimate,
    measured: dict[str, Any],
    rows: list[tuple[str, int, int | None, float | None]],
) -> dict[str, Any]:
    from dnnmem_tune.reporting.document import SCHEMA, device_of

    return {
        "schema": SCHEMA,
        "kind": "check",
        "workload": workload,
        "params": params,
        "gpu": device_of(estimate.device),
        "batch_size": estimate.batch_size,
        "fits": estimate.fits,
        "out_of_memory": measured["out_of_memory"],
        "limit_bytes": estimate.limit_bytes,
        "peaks": {peak: estimated for peak, estimated, _, _ in rows},
        "measured_peaks": {peak: found for peak, _, found, _ in rows},
        "relative_errors": {peak: error for peak, _, _, error in rows},
        "torch": measured["torch"],
    }


def _print(
    workload: str,
    params: dict[str, Any],
    estimate: MemoryEstimate,
    measured: dict[str, Any],
    rows: list[tuple[str, int, int | None, float | None]],
) -> None:
    from dnnmem_tune.reporting.text import TextReport
    from dnnmem_tune.reporting.words import job_line
    from dnnmem_tune.units import format_bytes

    report = TextReport()
    report.lines([job_line(workload, params, estimate.device)], "bold")
    ran = "ran out of memory" if measured["out_of_memory"] else "ran"
    said = {True: "fits", False: "does not fit", None: "is not known to fit"}[estimate.fits]
    report.lines(
        [f"Batch {estimate.batch_size} {ran} on the card (torch {measured['torch']}); the estimate: it {said}."]
    )
    report.rows(
        "",
        ("peak", "estimated", "measured", "error"),
        [
            (
                peak.removesuffix("_bytes"),
                format_bytes(estimated),
                format_bytes(found) if found is not None else "not measured",
                f"{100 * error:+.2f} %" if error is not None else "",
            )
            for peak, estimated, found, error in rows
        ],
    )
    if measured["peaks"]["device_bytes"] is None:
        report.lines(['The device peak needs NVML: pip install "dnnmem-tune[nvml]".'])
