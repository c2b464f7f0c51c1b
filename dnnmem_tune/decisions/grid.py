"""The values a search may answer with, in order, however many there are."""

from __future__ import annotations

from dataclasses import dataclass

from dnnmem_tune.errors import UsageError


@dataclass(frozen=True, slots=True)
class Grid:
    """Ascending whole numbers: evenly spaced, or doubling. Nothing is listed, so 10**12 of them cost nothing."""

    first: int
    """Smallest value; at least 1."""

    length: int
    """How many values there are; at least 1."""

    step: int = 1
    """Distance of two neighbours; 0 where each value is twice the one before."""

    @property
    def last(self) -> int:
        """The largest value."""
        return self.value(self.length - 1)

    def value(self, index: int) -> int:
        """Return the value at ``index``, counted from 0."""
        return self.first << index if self.step == 0 else self.first + self.step * index

    def index_below(self, value: float) -> int:
        """Return the index of the largest value that is at most ``value``; -1 if all are larger."""
        if value < self.first:
            return -1
        whole = int(min(value, self.last))
        if self.step == 0:
            return (whole // self.first).bit_length() - 1
        return (whole - self.first) // self.step

    def from_index(self, index: int, *, stride: int = 1) -> Grid:
        """Return every ``stride``-th value from ``index`` on."""
        length = -(-(self.length - index) // stride)
        if self.step == 0:
            return Grid(self.value(index), self.length - index, 0)
        return Grid(self.value(index), length, self.step * stride)


def make_grid(
    *,
    minimum: int,
    maximum: int,
    multiple_of: int = 1,
    power_of_two: bool = False,
    searched: str = "batch_size",
) -> Grid:
    """Return the values between two bounds, both included.

    Args:
        minimum: Smallest value allowed; at least 1.
        maximum: Largest value allowed.
        multiple_of: Every value is a multiple of it; at least 1.
        power_of_two: Every value is a power of two.
        searched: What the values are of, for the messages.

    Raises:
        UsageError: If a bound is no positive whole number, or no value meets the conditions.

    Example:
        >>> grid = make_grid(minimum=10, maximum=100, multiple_of=8)
        >>> grid.first, grid.last, grid.length
        (16, 96, 11)

    """
    for name, bound in (("minimum", minimum), ("maximum", maximum), ("multiple_of", multiple_of)):
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise UsageError(f"largest {searched}: {name} must be a whole number of at least 1, got {bound!r}")
    if maximum < minimum:
        raise UsageError(
            f"largest {searched}: maximum={maximum} is below minimum={minimum}; pass maximum >= minimum"
        )
    if power_of_two:
        return _doubling(minimum, maximum, multiple_of, searched)
    first = -(-minimum // multiple_of) * multiple_of
    if first > maximum:
        raise UsageError(f"largest {searched}: no multiple of {multiple_of} lies between {minimum} and {maximum}")
    return Grid(first, (maximum - first) // multiple_of + 1, multiple_of)


def _doubling(minimum: int, maximum: int, multiple_of: int, searched: str) -> Grid:
    if multiple_of & (multiple_of - 1):
        raise UsageError(
            f"largest {searched}: no power of two is a multiple of {multiple_of}; drop one of the two conditions"
        )
    first = 1 << (max(minimum, multiple_of) - 1).bit_length()
    if first > maximum:
        raise UsageError(
            f"largest {searched}: no power of two lies between {max(minimum, multiple_of)} and {maximum}"
        )
    return Grid(first, (maximum // first).bit_length(), 0)
