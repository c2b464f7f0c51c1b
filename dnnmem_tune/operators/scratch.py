"""The registry of scratch rules, and the sizes of a trace at one batch size.

A front-end writes down *which* rule applies and the numbers it needs; the rule itself is
evaluated here, for each batch size and device, because launch configurations depend on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.ir.trace import MemoryTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTarget:
    """What a kernel's launch configuration depends on."""

    compute_capability: tuple[int, int]
    """Major and minor."""

    num_sms: int
    """Streaming multiprocessors."""

    threads_per_sm: int
    """Largest number of resident threads on one multiprocessor."""

    conv_workspace: str = "none"
    """Name of the convolution workspace model: ``none``, ``limited`` or ``benchmark``."""


Rule = Callable[[Sequence[int], str, KernelTarget], int]
"""Arguments, tag, target -> bytes requested; 0 where the kernel takes none."""

_RULES: dict[str, Rule] = {}


def scratch_rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rule under the name that traces use.

    Raises:
        ValueError: If the name is taken; two rules for one kernel is always a mistake.

    """

    def register(rule: Rule) -> Rule:
        if name in _RULES:
            raise ValueError(f"a scratch rule named {name!r} is already registered")
        _RULES[name] = rule
        return rule

    return register


def scratch_bytes(scratch: Scratch, batch_size: int, target: KernelTarget) -> int:
    """Return what a kernel requests at one batch size on one target.

    Raises:
        KeyError: If no rule has the scratch's name.

    """
    arguments = [argument.at(batch_size) for argument in scratch.arguments]
    return max(0, _RULES[scratch.rule](arguments, scratch.tag, target))


class SizeTable:
    """The bytes of every storage of a trace, for any batch size, on one target.

    Built once per trace; a look-up costs a few array operations and the scratch rules.
    """

    def __init__(self, trace: MemoryTrace, target: KernelTarget) -> None:
        sizes = [storage.size for storage in trace.storages]
        plain = [size if isinstance(size, Polynomial) else Polynomial(0) for size in sizes]
        self._constant = np.array([size.constant for size in plain], dtype=np.int64)
        self._linear = np.array([size.linear for size in plain], dtype=np.int64)
        self._quadratic = np.array([size.quadratic for size in plain], dtype=np.int64)
        self._target = target
        # Layers repeat, and so do their scratch requests: each distinct one is evaluated once.
        self._scratch: dict[Scratch, list[int]] = {}
        for index, size in enumerate(sizes):
            if isinstance(size, Scratch):
                self._scratch.setdefault(size, []).append(index)

    def without_scratch(self, batch_size: int) -> npt.NDArray[np.int64]:
        """Return the bytes of every storage, 0 for scratch; shape ``(num_storages,)``.

        Args:
            batch_size: At least 1, and such that no size exceeds 64 bits.

        """
        pairs = batch_size * (batch_size - 1) // 2
        return self._constant + self._linear * batch_size + self._quadratic * pairs

    def at(self, batch_size: int) -> list[int]:
        """Return the bytes of every storage, in the order of ``trace.storages``.

        Args:
            batch_size: At least 1.

        Returns:
            Bytes; 0 for a kernel that takes no scratch at this batch size.

        """
        sizes: list[int] = self.without_scratch(batch_size).tolist()
        for scratch, indices in self._scratch.items():
            nbytes = scratch_bytes(scratch, batch_size, self._target)
            for index in indices:
                sizes[index] = nbytes
        return sizes
