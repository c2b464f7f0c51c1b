"""FLAML: one line that keeps a search within a GPU.

::

    flaml.tune.run(train, config=space, config_constraints=[memory_constraint(guard)], ...)

FLAML asks before it launches. What it skips counts towards ``max_failure`` (100 in a row by
default); raise that for a tight space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dnnmem_tune.guard import MemoryGuard


def memory_constraint(guard: MemoryGuard) -> tuple[Callable[[Mapping[str, Any]], float], str, float]:
    """Return an entry for ``config_constraints`` of ``flaml.tune.run``.

    The function in it is ``peak / limit - 1``, which has to be at most zero; its name is kept by
    FLAML in messages.
    """

    def gpu_memory(config: Mapping[str, Any]) -> float:
        return guard.violation(guard.check(config))

    return gpu_memory, "<=", 0.0
