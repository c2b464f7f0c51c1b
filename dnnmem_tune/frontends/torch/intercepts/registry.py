"""The registry of operators that fake tensors cannot answer, or answer other than a CUDA run does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

Intercept = Callable[["Recorder", Any, Any, Any], Any]

INTERCEPTS: dict[Any, Intercept] = {}
"""Operator overload -> what is run instead of it."""


def intercept(*overloads: Any) -> Callable[[Intercept], Intercept]:
    """Register a function for these operator overloads."""

    def register(function: Intercept) -> Intercept:
        for overload in overloads:
            INTERCEPTS[overload] = function
        return function

    return register
