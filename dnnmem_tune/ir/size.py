"""Sizes that depend on the batch size.

A tensor's bytes are a polynomial in the batch size B. It is kept in the binomial basis
1, B, B(B-1)/2, in which every polynomial of degree two that is a whole number at each
whole B has whole coefficients, so that no fraction and no float is ever needed.

A kernel's scratch memory is not a polynomial: it depends on launch configurations. It is
kept as the *name of a rule* and its arguments, which are polynomials; the operators layer
evaluates it for a batch size and a device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Polynomial:
    """``constant + linear * B + quadratic * B (B - 1) / 2``, whole numbers."""

    constant: int
    linear: int = 0
    quadratic: int = 0

    def at(self, batch_size: int) -> int:
        """Return the value at ``batch_size``.

        Example:
            >>> Polynomial(8, 4).at(3)
            20

        """
        return self.constant + self.linear * batch_size + self.quadratic * (batch_size * (batch_size - 1) // 2)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that a kernel takes for itself, by a named rule of the operators layer."""

    rule: str
    """Name in the registry of ``dnnmem_tune.operators.scratch``."""

    arguments: tuple[Polynomial, ...]
    """What the rule needs to know: element counts, extents, sizes of one element."""

    tag: str = ""
    """What is not a number and the same at every batch size, such as a dtype."""


Size = Polynomial | Scratch
