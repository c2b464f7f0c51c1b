"""What an allocator's memory looks like: segments and the blocks that tile them.

For pictures and for the check of invariants; a replay builds none of these objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment."""

    address: int

    nbytes: int

    storage: int | None = None
    """The storage that owns it; ``None`` for a free or unmapped block."""

    is_mapped: bool = True
    """Whether there is memory behind its addresses."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory from the driver in one piece, or mapped pages of an expandable segment that lie together."""

    blocks: tuple[Block, ...]
    """All of it, in order of address."""

    is_large: bool
    """Whether it belongs to the large pool."""

    @property
    def address(self) -> int:
        """Where it starts."""
        return self.blocks[0].address

    @property
    def nbytes(self) -> int:
        """The sum of its blocks."""
        return sum(block.nbytes for block in self.blocks)


def tiling(
    start: int, nbytes: int, in_use: Mapping[int, Block], free: Mapping[int, int], unmapped: Mapping[int, int]
) -> list[Block]:
    """Return the blocks of an address range in order.

    Args:
        start: Where the range starts.
        nbytes: Its size.
        in_use: Address -> block.
        free: Address -> size.
        unmapped: Address -> size.

    Raises:
        AssertionError: If not exactly one block starts where the one before it ends.

    """
    blocks: list[Block] = []
    address = start
    while address < start + nbytes:
        found = [in_use[address]] if address in in_use else []
        found += [Block(address, free[address])] if address in free else []
        found += [Block(address, unmapped[address], is_mapped=False)] if address in unmapped else []
        assert len(found) == 1, f"{len(found)} blocks start at {address}"
        blocks += found
        address += found[0].nbytes
    return blocks


def check_tiling(start: int, nbytes: int, blocks: Iterable[Block]) -> None:
    """Verify that blocks cover a range to its end and that mergeable neighbours are merged.

    Raises:
        AssertionError: If they do not.

    """
    blocks = list(blocks)
    assert sum(block.nbytes for block in blocks) == nbytes, (
        f"the blocks from {start} do not end with their segment"
    )
    for left, right in pairwise(blocks):
        is_mergeable = left.storage is None and right.storage is None and left.is_mapped == right.is_mapped
        assert not is_mergeable, f"the free blocks that meet at {right.address} are not merged"


def contiguous(blocks: Iterable[Block], *, is_large: bool) -> Iterator[Segment]:
    """Yield the runs of mapped blocks."""
    for is_mapped, run in groupby(blocks, key=lambda block: block.is_mapped):
        if is_mapped:
            yield Segment(tuple(run), is_large)
