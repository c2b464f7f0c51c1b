"""A search space: its parameters, and configurations drawn from it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from dnnmem_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A parameter that takes numbers between two bounds, both included."""

    low: float

    high: float

    step: float | None = None
    """Distance of two values; None for any number in between."""

    log: bool = False
    """Whether values are drawn evenly on a logarithmic scale."""

    whole: bool = False
    """Whether values are whole numbers."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise UsageError(f"a range goes from a low to a high number, got {self.low!r} to {self.high!r}")
        if self.log and self.low <= 0:
            raise UsageError(f"a logarithmic range starts above 0, got low={self.low!r}")
        if self.step is not None and self.step <= 0:
            raise UsageError(f"the step of a range is above 0, got {self.step!r}")

    @property
    def discrete(self) -> bool:
        """Whether there is a finite number of values."""
        return self.whole or self.step is not None

    def at(self, share: float) -> float:
        """Return the value below which ``share`` of the draws lie, from 0 to 1."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        step = self.step if self.step is not None else 1 if self.whole else None
        if step is not None:
            value = min(self.low + step * round((value - self.low) / step), self.last)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    @property
    def last(self) -> float:
        """The largest value that is taken."""
        step = self.step if self.step is not None else 1 if self.whole else None
        if step is None:
            return self.high
        return self.low + step * math.floor((self.high - self.low) / step + 1e-9)

    def values(self) -> list[float]:
        """Return all values of a discrete parameter, ascending."""
        step = self.step if self.step is not None else 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        numbers = [self.low + step * index for index in range(count)]
        return [round(number) for number in numbers] if self.whole else numbers


@dataclass(frozen=True, slots=True)
class Choices:
    """A parameter that takes one of several values."""

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise UsageError("a choice needs at least one value")


Parameter = Numbers | Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Parameters by name; nested ones are named ``model/width``."""

    parameters: Mapping[str, Parameter]

    constants: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that are the same in every trial."""

    batch_param: str = "batch_size"
    """Which of them is the batch size."""

    @property
    def batch(self) -> Parameter:
        """The batch sizes.

        Raises:
            UsageError: If there is none.

        """
        if self.batch_param in self.parameters:
            return self.parameters[self.batch_param]
        if self.batch_param in self.constants:
            return Choices((self.constants[self.batch_param],))
        names = ", ".join(self.parameters) or "none"
        raise UsageError(f"the space has no parameter {self.batch_param!r} for the batch size; it has {names}")

    @property
    def structure(self) -> dict[str, Parameter]:
        """What is searched besides the batch size."""
        return {name: kind for name, kind in self.parameters.items() if name != self.batch_param}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The continuous parameters, from where to where."""
        return {
            name: (kind.low, kind.high)
            for name, kind in self.structure.items()
            if isinstance(kind, Numbers) and not kind.discrete
        }

    def batch_sizes(self, limit: int) -> list[int]:
        """Return the batch sizes, or ``limit`` of them that stand for equal shares of the draws."""
        kind = self.batch
        if isinstance(kind, Choices):
            return [int(option) for option in kind.options]
        values = kind.values() if kind.discrete and not kind.log else []
        if 0 < len(values) <= limit:
            return [int(value) for value in values]
        return [int(kind.at((index + 0.5) / limit)) for index in range(limit)]

    def configurations(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Return configurations without a batch size, constants included.

        Returns:
            All of them where what is discrete has no more than ``count`` combinations, so that the
            survey of those is complete; ``count`` random ones otherwise.

        """
        generator = random.Random(seed)
        drawn = list(self._all(count)) or [
            {name: draw(kind, generator.random()) for name, kind in self.structure.items()} for _ in range(count)
        ]
        continuous = {name: self.parameters[name] for name in self.ranges}
        fixed = {name: value for name, value in self.constants.items() if name != self.batch_param}
        return [
            {
                **fixed,
                **params,
                **{
                    name: draw(kind, generator.random()) for name, kind in continuous.items() if name not in params
                },
            }
            for params in drawn
        ]

    def _all(self, count: int) -> Iterator[dict[str, Any]]:
        discrete = {name: _listed(kind, count) for name, kind in self.structure.items() if name not in self.ranges}
        if math.prod(len(values) for values in discrete.values()) > count:
            return
        for combination in product(*discrete.values()):
            yield dict(zip(discrete, combination, strict=True))


def draw(kind: Parameter, share: float) -> Any:
    """Return the value of a parameter below which ``share`` of its draws lie; ``share`` from 0 to below 1."""
    if isinstance(kind, Choices):
        return kind.options[min(int(share * len(kind.options)), len(kind.options) - 1)]
    if kind.discrete and not kind.log:
        values = _count(kind)
        return draw(Choices(tuple(kind.values())), share) if values <= 10**5 else kind.at(share)
    return kind.at(share)


def _listed(kind: Parameter, limit: int) -> list[Any]:
    if isinstance(kind, Choices):
        return list(kind.options)
    if _count(kind) > limit:
        return [None] * (limit + 1)  # Too many to list; only the number matters to the caller.
    return list(kind.values())


def _count(kind: Numbers) -> int:
    step = kind.step if kind.step is not None else 1
    return math.floor((kind.high - kind.low) / step + 1e-9) + 1
