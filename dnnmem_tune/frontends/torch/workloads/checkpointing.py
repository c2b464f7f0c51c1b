"""Activation checkpointing of a model, by its own switch or by the classes of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dnnmem_tune.errors import UsageError


def enable_checkpointing(model: nn.Module, blocks: Sequence[str], *, reentrant: bool) -> None:
    """Make blocks of ``model`` keep only their inputs, and compute the rest again in backward.

    Args:
        model: The model; changed in place.
        blocks: Names of the module classes to checkpoint; empty: use the model's own switch, that of
            Hugging Face (``gradient_checkpointing_enable``) or of timm (``set_grad_checkpointing``).
        reentrant: Use the older kind, which runs the block's backward inside the outer one.

    Raises:
        UsageError: If there is neither such a block nor a switch.

    """
    chosen = [module for module in model.modules() if type(module).__name__ in blocks]
    for module in chosen:
        # An attribute of the instance: names of modules and parameters stay what they were.
        module.forward = partial(_checkpointed, module.forward, reentrant)
    if chosen:
        return
    hugging_face = getattr(model, "activation_checkpointing_enable", None)  # the newer name
    hugging_face = hugging_face or getattr(model, "gradient_checkpointing_enable", None)
    timm = getattr(model, "set_grad_checkpointing", None)
    if not blocks and callable(hugging_face):
        try:
            hugging_face({"use_reentrant": reentrant})
        except ValueError as error:  # transformers: the model supports none
            raise UsageError(f"checkpointing is asked for, but {error}") from error
    elif not blocks and callable(timm):
        timm(True)
    else:
        missing = f"no module of class {' or '.join(blocks)}" if blocks else "no switch for it"
        raise UsageError(
            f"checkpointing is asked for, but {type(model).__name__} has {missing}; name the classes of its "
            "blocks in TrainingStep(checkpoint_blocks=...)"
        )


def _checkpointed(forward: Callable[..., Any], reentrant: bool, *inputs: Any, **options: Any) -> Any:
    # The reentrant kind gives no gradients to a block none of whose inputs needs one, such as the
    # first, which takes the images; there it must be left out.
    if reentrant and not any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        return forward(*inputs, **options)
    return checkpoint(forward, *inputs, use_reentrant=reentrant, **options)
