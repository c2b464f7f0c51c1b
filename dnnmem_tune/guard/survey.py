"""Judge a search space before the search: some configurations, each at many batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dnnmem_tune.decisions.space import SearchSpace
from dnnmem_tune.decisions.space_report import SpaceReport, SurveyedConfiguration, report_on
from dnnmem_tune.decisions.verdict import VerdictState
from dnnmem_tune.errors import DnnMemError, UsageError
from dnnmem_tune.guard.guard import MemoryGuard
from dnnmem_tune.guard.keys import nest, put

DEFAULT_CONFIGURATIONS = 64
DEFAULT_BATCH_SIZES = 32


def survey(
    guard: MemoryGuard,
    space: SearchSpace,
    *,
    num_configurations: int = DEFAULT_CONFIGURATIONS,
    num_batch_sizes: int = DEFAULT_BATCH_SIZES,
    seed: int = 0,
) -> SpaceReport:
    """Return the share of a space that fits, what drives it, and a reduced space.

    Each configuration costs one trace, unless it differs from another one in inert parameters only;
    its batch sizes are free. What is traced here is known to the guard in the search that follows.

    Args:
        guard: What judges; its ``batch_param`` is that of the space.
        space: What to survey.
        num_configurations: How many to judge. All combinations of what is discrete, if they are no more.
        num_batch_sizes: At most so many for each.
        seed: For the draw.

    Raises:
        UsageError: If the space has no batch size, or a number is below 1.

    """
    for name, value in (("num_configurations", num_configurations), ("num_batch_sizes", num_batch_sizes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"survey: {name} must be a whole number of at least 1, got {value!r}")
    if space.batch_param != guard.batch_param:
        raise UsageError(
            f"survey: the space calls the batch size {space.batch_param!r} and the guard {guard.batch_param!r}; "
            f"pass batch_param={space.batch_param!r} to MemoryGuard"
        )
    batch_sizes = space.batch_sizes(num_batch_sizes)
    guard.expect(space.ranges)
    flat = space.configurations(num_configurations, seed)
    nested = [nest(params) for params in flat]
    first = [guard.submit(put(params, space.batch_param, batch_sizes[0])) for params in nested]
    for future in first:
        future.result()
    surveyed = [
        SurveyedConfiguration(
            params=params,
            verdicts={batch: guard.check(put(tree, space.batch_param, batch)) for batch in batch_sizes},
            largest_batch=_largest(guard, tree),
        )
        for params, tree in zip(flat, nested, strict=True)
    ]
    return report_on(space, surveyed, inert=_inert(guard, space, nested, surveyed))


def _inert(
    guard: MemoryGuard,
    space: SearchSpace,
    nested: Sequence[Mapping[str, Any]],
    surveyed: Sequence[SurveyedConfiguration],
) -> set[str]:
    """Return the continuous parameters that do not change memory.

    A configuration that comes back with other continuous values makes the guard trace the ends of
    their ranges, all at once: two traces, if all are inert.
    """
    for tree, judged in zip(nested, surveyed, strict=True):
        batch, verdict = next(iter(judged.verdicts.items()))
        if verdict.state is VerdictState.UNKNOWN:
            continue
        moved = put(tree, space.batch_param, batch)
        for name, (low, high) in space.ranges.items():
            moved = put(moved, name, low + 0.5 * (high - low))
        guard.check(moved)
        break
    return {name for name, status in guard.inert_parameters().items() if status == "inert"}


def _largest(guard: MemoryGuard, params: Mapping[str, Any]) -> int | None:
    try:
        return guard.largest_batch(params).largest_batch
    except DnnMemError:
        return None
