"""What would make a job fit: changes that its workload takes, and other cards, each estimated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dnnmem_tune.api.parameters import accepted_parameters
from dnnmem_tune.api.search import Bounds, search_batch_size
from dnnmem_tune.decisions.remedies import Change, Remedy, combined, judge_changes
from dnnmem_tune.decisions.verdict import Verdict, VerdictState, verdict_of
from dnnmem_tune.errors import DnnMemError, UsageError, WorkloadError

if TYPE_CHECKING:
    from dnnmem_tune.api.session import EstimationSession
    from dnnmem_tune.estimate.devices import DeviceProfile

_CARDS_TRIED = 6
"""Larger cards estimated until one fits; each compute capability is a trace."""


def advise(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], batch_size: int
) -> tuple[Remedy, ...]:
    """Return what would help a job that does not fit at ``batch_size``, each remedy estimated.

    Only hyperparameters that the workload is known to take are tried; a change that saves nothing, or under
    which the workload does not run, is no remedy.

    Returns:
        Remedies, those that are enough alone first.

    """
    needed = session.estimate(batch_size, device, params).peak_device_bytes

    def judge(change: Change) -> Verdict | None:
        try:
            estimate = session.estimate(batch_size, device, {**params, **change.params})
        except (UsageError, WorkloadError):
            return None
        return verdict_of(estimate) if estimate.peak_device_bytes < needed else None

    singles = judge_changes(_parameter_changes(session, device, params), judge)
    remedies = list(singles)
    if not any(remedy.enough for remedy in singles):
        together = combined(remedy.change for remedy in _one_per_parameter(singles))
        if together is not None:
            remedies += judge_changes([together], judge)
    remedies += _smaller_batch(session, device, params, batch_size)
    remedies += _larger_card(session, device, params, batch_size, needed)
    return tuple(sorted(remedies, key=lambda remedy: not remedy.enough))


def _parameter_changes(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any]
) -> Iterator[Change]:
    takes = accepted_parameters(session.workload)
    if "precision" in takes and params.get("precision", "fp32") == "fp32":
        # Tensor cores take bfloat16 from Ampere on; before that only float16 is of use.
        precision = "bf16" if device.compute_capability >= (8, 0) else "fp16"
        yield Change(text=f"mixed precision (precision={precision!r})", params={"precision": precision})
    if "checkpointing" in takes and not params.get("checkpointing"):
        yield Change(text="activation checkpointing (checkpointing=True)", params={"checkpointing": True})
    if "optimizer" in takes:
        if params.get("optimizer") != "sgd":
            yield Change(text="an optimizer without state (optimizer='sgd')", params={"optimizer": "sgd"})
        if "foreach" in takes and params.get("foreach") is None:
            yield Change(
                text="an optimizer that updates tensor by tensor (foreach=False)", params={"foreach": False}
            )


def _one_per_parameter(remedies: tuple[Remedy, ...]) -> list[Remedy]:
    """Return the best remedy for each parameter: two values of one cannot be combined."""
    best: dict[tuple[str, ...], Remedy] = {}
    for remedy in remedies:
        best.setdefault(tuple(sorted(remedy.change.params)), remedy)
    return list(best.values())


def _smaller_batch(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], batch_size: int
) -> list[Remedy]:
    if batch_size == 1:
        return []
    try:
        result = search_batch_size(session, device, params, Bounds(maximum=batch_size - 1))
    except WorkloadError:
        return []
    if result.largest_batch is None or result.verdict is None:
        return []
    steps = -(-batch_size // result.largest_batch)
    text = f"micro-batches of at most {result.largest_batch}, {steps} or more accumulated for each optimizer step"
    return [Remedy(change=Change(text=text, batch_size=result.largest_batch), verdict=result.verdict)]


def _larger_card(
    session: EstimationSession, device: DeviceProfile, params: dict[str, Any], batch_size: int, needed: int
) -> list[Remedy]:
    """Return the smallest card of the catalogue that fits."""
    from dnnmem_tune.config import list_devices

    # What another generation needs differs by its kernels: a card slightly too small here is worth a look.
    larger = [card for card in list_devices() if card.total_bytes > max(device.total_bytes, needed * 0.95)]
    tried: set[int] = set()
    for card in sorted(larger, key=lambda card: card.total_bytes):
        if len(tried) >= _CARDS_TRIED:
            break
        if card.total_bytes in tried:
            continue
        tried.add(card.total_bytes)
        try:
            verdict = verdict_of(session.estimate(batch_size, card, params))
        except DnnMemError:
            continue
        if verdict.state is VerdictState.FITS:
            text = f"another card: {card.name} is the smallest of the catalogue that fits"
            return [Remedy(change=Change(text=text, gpu=card.name), verdict=verdict)]
    return []
