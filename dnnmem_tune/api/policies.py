"""Which allocator a framework's jobs meet, and how its own configuration text changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dnnmem_tune.errors import UsageError

if TYPE_CHECKING:
    from dnnmem_tune.allocators.base import AllocatorPolicy


def policy_of(framework: str, alloc_conf: str | None = None) -> AllocatorPolicy:
    """Return the policy of a framework's allocator.

    Args:
        framework: Name of a front-end; one that is not known is refused where the workload is opened.
        alloc_conf: The text that configures the allocator; None or empty for the framework's defaults.

    Raises:
        UsageError: If the text cannot be meant.

    """
    return _POLICIES.get(framework.partition(":")[0], _caching)(alloc_conf or "", framework)


def _caching(alloc_conf: str, framework: str) -> AllocatorPolicy:
    from dnnmem_tune.allocators.policy import CachingPolicy

    if alloc_conf and framework != "torch":
        raise UsageError(f"alloc_conf configures PyTorch's allocator; it means nothing for {framework}")
    return CachingPolicy.from_alloc_conf(alloc_conf)


def _bfc(alloc_conf: str, _framework: str) -> AllocatorPolicy:
    from dnnmem_tune.allocators.bfc_policy import BfcPolicy

    return BfcPolicy.from_text(alloc_conf)


def _mxnet_pool(alloc_conf: str, _framework: str) -> AllocatorPolicy:
    from dnnmem_tune.allocators.mxnet_pool import MxnetPoolPolicy

    return MxnetPoolPolicy.from_alloc_conf(alloc_conf)


def _onnx(alloc_conf: str, framework: str) -> AllocatorPolicy:
    """Return the arena that runs the model, or the allocator of the framework that is to train it."""
    from dnnmem_tune.allocators.bfc_policy import BfcPolicy
    from dnnmem_tune.allocators.ort_arena import OrtArenaPolicy
    from dnnmem_tune.frontends.onnx.opening import onnx_target

    target = onnx_target(framework)
    if target == "pytorch":
        return _caching(alloc_conf, "torch")
    if target == "tensorflow":
        return BfcPolicy.from_text(alloc_conf)
    policy = OrtArenaPolicy.from_text(alloc_conf)
    # In a training step weights come one by one, and from the arena.
    return policy if target is None else replace(policy, num_reserved=0)


_POLICIES: dict[str, Callable[[str, str], AllocatorPolicy]] = {
    "torch": _caching,
    "tensorflow": _bfc,
    "onnx": _onnx,
    "mxnet": _mxnet_pool,
}
"""Framework -> what makes its policy from the configuration text and the framework's name."""
