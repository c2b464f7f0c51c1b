"""What is known of a search space: the share that fits, what drives it, and what is left.

Nothing is traced here. A survey (see ``guard.survey``) judges some configurations at several batch
sizes each; from those verdicts this module draws its conclusions, with their uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnmem_tune.decisions.space import Choices, Parameter, SearchSpace
from dnnmem_tune.decisions.verdict import Verdict, VerdictState
from dnnmem_tune.errors import UsageError

_BINS = 5
"""Numbers are compared in so many groups of equal size."""

_CHANCE = 0.01
"""A value is cut from a space if so many configurations with it fail by chance less often than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedConfiguration:
    """A configuration and its verdicts."""

    params: Mapping[str, Any]
    """Without the batch size."""

    verdicts: Mapping[int, Verdict]
    """By batch size of the space."""

    largest_batch: int | None
    """Largest batch size that fits, within the space or not; None where none is known to."""

    @property
    def largest_in_space(self) -> int | None:
        """The largest of the batch sizes judged that fits."""
        fitting = [batch for batch, verdict in self.verdicts.items() if verdict.state is VerdictState.FITS]
        return max(fitting, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What one parameter has to do with memory."""

    name: str

    effect: float
    """Share of the variance of the logarithm of the peak that it explains by itself, from 0 to 1."""

    inert: bool
    """Whether traces have shown that it does not change memory."""

    fitting: tuple[tuple[str, float], ...]
    """Value or range of values, and the share that fits of what can be judged there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceReport:
    """What a survey found."""

    space: SearchSpace

    configurations: tuple[SurveyedConfiguration, ...]

    share_fitting: float
    """Of all configurations with all batch sizes that can be judged, from 0 to 1."""

    interval: tuple[float, float]
    """Where that share lies with a confidence of 95 %, given which configurations were drawn."""

    share_unknown: float
    """Of all configurations with all batch sizes: what cannot be judged."""

    drivers: tuple[Driver, ...]
    """Largest effect first."""

    reduced: SearchSpace
    """The space without values at which nothing fits, as far as was seen."""

    reasons_unknown: tuple[str, ...]


def report_on(
    space: SearchSpace, configurations: Sequence[SurveyedConfiguration], *, inert: Collection[str] = ()
) -> SpaceReport:
    """Return what follows from surveyed configurations.

    Args:
        space: The space they were drawn from.
        configurations: At least one.
        inert: Parameters known not to change memory.

    Raises:
        UsageError: If there is no configuration.

    """
    if not configurations:
        raise UsageError("a survey needs at least one configuration")
    verdicts = [verdict for surveyed in configurations for verdict in surveyed.verdicts.values()]
    unknown = [verdict for verdict in verdicts if verdict.state is VerdictState.UNKNOWN]
    shares = [share for surveyed in configurations if (share := _share(surveyed.verdicts.values())) is not None]
    mean = sum(shares) / len(shares) if shares else 0.0
    rows = [
        _Row({**surveyed.params, space.batch_param: batch}, verdict, index)
        for index, surveyed in enumerate(configurations)
        for batch, verdict in surveyed.verdicts.items()
    ]
    effects = _effects(space, rows)
    drivers = [
        Driver(
            name=name,
            effect=0.0 if name in inert else effects[name],
            inert=name in inert,
            fitting=tuple(
                (label, share)
                for label, members in _groups(name, kind, rows)
                if (share := _share(row.verdict for row in members)) is not None
            ),
        )
        for name, kind in space.parameters.items()
    ]
    return SpaceReport(
        space=space,
        configurations=tuple(configurations),
        share_fitting=mean,
        interval=_interval(shares, mean) if shares else (0.0, 1.0),
        share_unknown=len(unknown) / len(verdicts),
        drivers=tuple(sorted(drivers, key=lambda driver: -driver.effect)),
        reduced=_reduce(space, rows, set(inert)),
        reasons_unknown=tuple(dict.fromkeys(verdict.reason for verdict in unknown)),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One verdict."""

    params: Mapping[str, Any]

    verdict: Verdict

    configuration: int
    """Which configuration it belongs to; verdicts of one are no independent evidence."""


def _share(verdicts: Iterable[Verdict]) -> float | None:
    """Return the share that fits of what can be judged."""
    states = [verdict.state for verdict in verdicts if verdict.state is not VerdictState.UNKNOWN]
    return states.count(VerdictState.FITS) / len(states) if states else None


def _interval(shares: Sequence[float], mean: float) -> tuple[float, float]:
    """Return the interval of a mean; wide where all shares happen to be equal, as Wilson's is."""
    count = len(shares)
    spread = sum((share - mean) ** 2 for share in shares) / max(1, count - 1)
    z = 1.96
    # Shares lie in [0, 1]: at most as uncertain as a coin, at least as "none of so many" is.
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(spread / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _effects(space: SearchSpace, rows: Sequence[_Row]) -> dict[str, float]:
    """Return the share of variance that each parameter explains.

    The variance of the logarithm of the peak has two parts, between configurations and within them.
    The batch size explains within; the others explain between, where each configuration counts once.
    """
    peaks = {id(row): math.log(row.verdict.peak_bytes) for row in rows if row.verdict.peak_bytes}
    known = [row for row in rows if id(row) in peaks]
    members: dict[int, list[_Row]] = {}
    for row in known:
        members.setdefault(row.configuration, []).append(row)
    means = {index: sum(peaks[id(row)] for row in part) / len(part) for index, part in members.items()}
    within = sum((peaks[id(row)] - means[row.configuration]) ** 2 for row in known)
    between = sum((means[row.configuration] - sum(peaks.values()) / len(peaks)) ** 2 for row in known)
    total = within + between
    if total <= 1e-12:
        return dict.fromkeys(space.parameters, 0.0)
    once = [part[0] for part in members.values()]
    effects = {}
    for name, kind in space.parameters.items():
        if name == space.batch_param:
            groups = [
                [peaks[id(row)] - means[row.configuration] for row in part]
                for _, part in _groups(name, kind, known)
            ]
            effects[name] = _effect(groups) * within / total
        else:
            groups = [[means[row.configuration] for row in part] for _, part in _groups(name, kind, once)]
            effects[name] = _effect(groups) * between / total
    return effects


def _effect(groups: Iterable[Sequence[float]]) -> float:
    """Return the share of variance between groups, less what chance alone would give (epsilon squared)."""
    filled = [group for group in groups if group]
    everything = [value for group in filled for value in group]
    count, num_groups = len(everything), len(filled)
    if num_groups < 2 or count <= num_groups:
        return 0.0
    mean = sum(everything) / count
    total = sum((value - mean) ** 2 for value in everything)
    within = sum(sum((value - sum(group) / len(group)) ** 2 for value in group) for group in filled)
    if total <= 1e-12:
        return 0.0
    return max(0.0, (total - within - (num_groups - 1) * within / (count - num_groups)) / total)


def _groups(name: str, kind: Parameter, rows: Sequence[_Row]) -> Iterator[tuple[str, list[_Row]]]:
    if isinstance(kind, Choices):
        for option in kind.options:
            yield str(option), [row for row in rows if row.params[name] == option]
        return
    values = sorted({row.params[name] for row in rows})
    bins = min(_BINS, len(values))
    for index in range(bins):
        part = values[len(values) * index // bins : len(values) * (index + 1) // bins]
        label = _number(part[0]) if part[0] == part[-1] else f"{_number(part[0])} to {_number(part[-1])}"
        yield label, [row for row in rows if part[0] <= row.params[name] <= part[-1]]


def _reduce(space: SearchSpace, rows: Sequence[_Row], inert: Collection[str]) -> SearchSpace:
    """Return the space without the values at which nothing may fit. Unknown counts as fitting here."""
    configurations = {row.configuration for row in rows}
    possible = {row.configuration for row in rows if row.verdict.state is not VerdictState.EXCEEDS}
    share = len(possible) / len(configurations)

    def is_enough(evidence: Sequence[_Row]) -> bool:
        # Were the value as good as any other, each configuration with it would be hopeless with chance 1 - share.
        return (1 - share) ** len({row.configuration for row in evidence}) < _CHANCE

    parameters = {
        name: kind if name in inert else _reduced(name, kind, rows, is_enough)
        for name, kind in space.parameters.items()
    }
    return replace(space, parameters=parameters)


def _reduced(
    name: str, kind: Parameter, rows: Sequence[_Row], is_enough: Callable[[Sequence[_Row]], bool]
) -> Parameter:
    possible = [row.params[name] for row in rows if row.verdict.state is not VerdictState.EXCEEDS]
    if not possible:
        return kind
    if isinstance(kind, Choices):
        return Choices(
            tuple(
                option
                for option in kind.options
                if option in possible or not is_enough([row for row in rows if row.params[name] == option])
            )
        )
    above = [row for row in rows if row.params[name] > max(possible)]
    below = [row for row in rows if row.params[name] < min(possible)]
    step = (kind.step or 1) if kind.discrete else 0
    # The first value beyond the last that fits bounds it: in between nothing was seen.
    high = min(row.params[name] for row in above) - step if is_enough(above) else kind.high
    low = max(row.params[name] for row in below) + step if is_enough(below) else kind.low
    return replace(kind, low=low, high=high)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
