"""Which parameters do not change memory, learnt from traces and from nothing else.

Two configurations with equal traces are evidence that what they differ in is *inert*; a learning
rate is, a width is not. What is concluded, and from what:

* Values fall into classes: zero, one, negative and other numbers are apart, and so is every text,
  flag and None. ``momentum=0`` keeps no buffer and ``dropout=0`` draws no mask, so what holds for
  other numbers says nothing about these. A conclusion concerns the class "other number" only: a
  flag or a name that was not traced is always traced.
* Three distinct values with equal traces make a number inert *between* the smallest and the
  largest of them: nothing monotone can change in between, and the third guards against the rest.
  Values of a continuous parameter that agree over a factor of ten are taken to agree everywhere in
  their class.
* Evidence from two traces that differ in several parameters counts for all of them if at most one
  is a whole number: kernel sizes 3x5 and 5x3 may need the same memory, two real numbers do not
  cancel out by chance.
* A conclusion holds in the *regime* it was drawn in: the classes of all the other parameters. Mask
  ratio is inert while ``model="resnet"`` and not while ``model="mae"``. It carries over to another
  regime only when, for each class there, some regime with it has the same conclusion, and as long
  as no trace has ever contradicted it.
* One contradiction, two traces that differ in that parameter alone, ends the conclusion in its
  regime and its carrying over from there on. The guard traces a configuration it could have
  concluded on from time to time to look for one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dnnmem_tune.guard.keys import Leaf, Leaves

NUM_AGREEING_VALUES = 3
WIDE_FACTOR = 10.0

Regime = tuple[tuple[str, Leaf], ...]
"""Parameters with the class of their value, sorted by name."""

_OTHER = "!other number"


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """A configuration that was traced."""

    leaves: Leaves

    signature: str
    """Equal exactly for equal traces."""


@dataclass(frozen=True, slots=True)
class InertRange:
    """Where a parameter is known not to change memory."""

    lowest: float

    highest: float

    unbounded: bool = False
    """Whether every other number of its class is included."""

    def holds(self, value: Leaf) -> bool:
        """Return whether ``value`` lies inside."""
        if not _is_number(value):
            return False
        return self.unbounded or self.lowest <= float(value) <= self.highest  # type: ignore[arg-type]


def class_of(value: Leaf) -> Leaf:
    """Return the class of a value: itself, except for numbers other than 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if value in (0, 1):
        return f"!{int(value)}"
    return "!negative number" if value < 0 else _OTHER


def regime_of(leaves: Leaves) -> Regime:
    """Return the class of every parameter."""
    return tuple((name, class_of(value)) for name, value in leaves)


@dataclass(slots=True)
class _Evidence:
    """What is known about one parameter in one regime."""

    agreeing: list[set[float]] = field(default_factory=list)
    """Sets of values with equal traces, all else equal or itself inert."""

    contradicted: bool = False

    continuous: bool = False

    def link(self, one: float, other: float) -> None:
        """Note that two values were traced to the same memory."""
        joined = {one, other}
        apart = []
        for group in self.agreeing:
            if group & joined:
                joined |= group
            else:
                apart.append(group)
        self.agreeing = [*apart, joined]

    def conclude(self) -> InertRange | None:
        """Return where the parameter is inert, or None."""
        if self.contradicted:
            return None
        largest = max(self.agreeing, key=len, default=set[float]())
        if len(largest) < NUM_AGREEING_VALUES:
            return None
        lowest, highest = min(largest), max(largest)
        return InertRange(lowest, highest, self.continuous and lowest > 0 and highest >= WIDE_FACTOR * lowest)


class InertParameters:
    """What follows from the records so far. A pure function of them, up to their order.

    Example:
        >>> known = InertParameters()
        >>> for rate in (0.001, 0.01, 0.1):
        ...     _ = known.add(TracedRecord((("lr", rate), ("width", 64)), "a"))
        >>> known.find_equal((("lr", 0.05), ("width", 64))).signature
        'a'
        >>> known.find_equal((("lr", 0.05), ("width", 65))) is None
        True

    """

    def __init__(self) -> None:
        self.records: list[TracedRecord] = []
        self._by_leaves: dict[Leaves, TracedRecord] = {}
        self._by_regime: dict[Regime, list[TracedRecord]] = defaultdict(list)
        self._evidence: dict[Regime, dict[str, _Evidence]] = defaultdict(dict)
        self._ever_contradicted: set[str] = set()
        self._continuous: set[str] = set()
        self._conclusions: dict[Regime, dict[str, InertRange]] = {}

    def add(self, record: TracedRecord) -> list[str]:
        """Take a traced configuration into account.

        Returns:
            The parameters whose conclusion this record contradicts: what was answered by it may be wrong.

        """
        if record.leaves in self._by_leaves:
            return []
        self._continuous |= {name for name, value in record.leaves if isinstance(value, float)}
        regime = regime_of(record.leaves)
        refuted = self._contradict(record, regime)
        for other in self._by_regime[regime]:
            self._compare(record, other, regime)
        self.records.append(record)
        self._by_leaves[record.leaves] = record
        self._by_regime[regime].append(record)
        self._conclusions.clear()
        return refuted

    def find_exact(self, leaves: Leaves) -> TracedRecord | None:
        """Return the record of this configuration, if it was traced."""
        return self._by_leaves.get(leaves)

    def find_equal(self, leaves: Leaves) -> TracedRecord | None:
        """Return a record that differs from this configuration in inert parameters only."""
        regime = regime_of(leaves)
        inert = self.conclusions(regime)
        if not inert:
            return None
        free = {name for name, value in leaves if name in inert and inert[name].holds(value)}
        for record in self._by_regime[regime]:
            if all(
                mine == theirs or (name in free and inert[name].holds(theirs))
                for (name, mine), (_, theirs) in zip(leaves, record.leaves, strict=True)
            ):
                return record
        return None

    def find_neighbour(self, leaves: Leaves) -> TracedRecord | None:
        """Return a record that differs from this configuration in continuous parameters only."""
        for record in self._by_regime[regime_of(leaves)]:
            if all(name in self._continuous for name, _, _ in _differences(leaves, record.leaves)):
                return record
        return None

    def conclusions(self, regime: Regime) -> Mapping[str, InertRange]:
        """Return the inert parameters of a regime, with where they are."""
        if regime not in self._conclusions:
            names = [name for name, kind in regime if kind == _OTHER]
            found = ((name, self._conclude(name, regime)) for name in names)
            self._conclusions[regime] = {name: inert for name, inert in found if inert is not None}
        return self._conclusions[regime]

    def is_continuous(self, name: str) -> bool:
        """Return whether a parameter has been seen with a value that is no whole number."""
        return name in self._continuous

    def is_contradicted(self, name: str, regime: Regime) -> bool:
        """Return whether two traces of this regime differ by this parameter alone."""
        evidence = self._evidence[regime].get(name)
        return evidence is not None and evidence.contradicted

    def summary(self) -> dict[str, str]:
        """Return, for each number among the parameters, ``inert``, ``changes memory`` or ``not known``."""
        verdicts: dict[str, str] = {}
        for regime, records in self._by_regime.items():
            inert = self.conclusions(regime)
            for name, kind in regime:
                if kind == _OTHER and name in inert:
                    verdicts.setdefault(name, "inert")
                elif kind == _OTHER and _differ_by(name, records, inert):
                    verdicts[name] = "changes memory"
        verdicts |= dict.fromkeys(self._ever_contradicted, "changes memory")
        names = sorted({name for regime in self._by_regime for name, kind in regime if kind == _OTHER})
        return {name: verdicts.get(name, "not known") for name in names}

    def _compare(self, record: TracedRecord, other: TracedRecord, regime: Regime) -> None:
        differing = list(_differences(record.leaves, other.leaves))
        numeric = [row for row in differing if _is_number(row[1]) and class_of(row[1]) == _OTHER]
        if len(numeric) < len(differing):
            return  # Only numbers of class "other" can differ within a regime, and containers never do.
        evidence = self._evidence[regime]
        if record.signature == other.signature:
            if sum(name not in self._continuous for name, _, _ in differing) <= 1:
                for name, mine, theirs in differing:
                    entry = evidence.setdefault(name, _Evidence())
                    entry.continuous = name in self._continuous
                    entry.link(float(mine), float(theirs))  # type: ignore[arg-type]
        elif len(differing) == 1:
            name = differing[0][0]
            evidence.setdefault(name, _Evidence()).contradicted = True
            self._ever_contradicted.add(name)

    def _contradict(self, record: TracedRecord, regime: Regime) -> list[str]:
        """Withdraw the conclusions by which this record should have been equal to another one and is not."""
        inert = dict(self.conclusions(regime))
        refuted: set[str] = set()
        for other in self._by_regime[regime]:
            if other.signature == record.signature:
                continue
            differing = list(_differences(record.leaves, other.leaves))
            if differing and all(
                name in inert and inert[name].holds(mine) and inert[name].holds(theirs)
                for name, mine, theirs in differing
            ):
                refuted |= {name for name, _, _ in differing}
        for name in refuted:
            self._evidence[regime].setdefault(name, _Evidence()).contradicted = True
        self._ever_contradicted |= refuted
        return sorted(refuted)

    def _conclude(self, name: str, regime: Regime) -> InertRange | None:
        own = self._evidence[regime].get(name) if regime in self._evidence else None
        if own is not None:
            concluded = own.conclude()
            if concluded is not None or own.contradicted:
                return concluded
        if name in self._ever_contradicted:
            return None
        return self._carry_over(name, regime)

    def _carry_over(self, name: str, regime: Regime) -> InertRange | None:
        """Return the conclusion of other regimes, if together they show every class of this one."""
        elsewhere = [
            (set(other), concluded)
            for other, evidence in self._evidence.items()
            if name in evidence and (concluded := evidence[name].conclude()) is not None
        ]
        shown = set[tuple[str, Leaf]]().union(*(classes for classes, _ in elsewhere))
        if not elsewhere or not set(regime) <= shown:
            return None
        return InertRange(
            max(concluded.lowest for _, concluded in elsewhere),
            min(concluded.highest for _, concluded in elsewhere),
            all(concluded.unbounded for _, concluded in elsewhere),
        )


def _differ_by(name: str, records: Sequence[TracedRecord], inert: Collection[str]) -> bool:
    """Return whether configurations that differ in this parameter, and in inert ones, differ in memory."""
    signatures: dict[Leaves, str] = {}
    for record in records:
        rest = tuple((other, value) for other, value in record.leaves if other != name and other not in inert)
        if signatures.setdefault(rest, record.signature) != record.signature:
            return True
    return False


def _differences(one: Leaves, other: Leaves) -> Iterator[tuple[str, Leaf, Leaf]]:
    """Yield name and both values where two configurations of one regime differ."""
    for (name, mine), (_, theirs) in zip(one, other, strict=True):
        if mine != theirs or type(mine) is not type(theirs):
            yield name, mine, theirs


def _is_number(value: Leaf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def replay(records: Iterable[TracedRecord]) -> InertParameters:
    """Return what follows from records that another process made."""
    known = InertParameters()
    for record in records:
        known.add(record)
    return known
