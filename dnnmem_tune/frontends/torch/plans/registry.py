"""What CUDA operators take inside one call, and in which order they allocate.

A plan lists the actions of one call in the order of the CUDA implementation. Outputs that
a plan does not mention are allocated after it, in the order of the schema; what it takes
and does not give back is given back when the call ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.ir.size import Size
from dnnmem_tune.ir.trace import Category

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Output:
    """An output is allocated now."""

    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Take:
    """Scratch memory is allocated now."""

    size: Size
    category: Category = Category.TEMPORARY
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Give:
    """The scratch of the plan's ``number``-th ``Take`` is given back now."""

    number: int


Action = Output | Take | Give
Plan = Callable[["Recorder", Any, Any, Any], Iterator[Action]]
"""Recorder, arguments, keyword arguments, outputs -> actions in order."""

MEMORY_PLANS: dict[Any, Plan] = {}
"""Operator overload -> its plan."""


def memory_plan(*overloads: Any) -> Callable[[Plan], Plan]:
    """Register a plan for these operator overloads."""

    def register(plan: Plan) -> Plan:
        for overload in overloads:
            if overload in MEMORY_PLANS:
                raise ValueError(f"{overload} has a memory plan already")
            MEMORY_PLANS[overload] = plan
        return plan

    return register
