"""The training step of the common case, described instead of written.

A `TrainingStep` is a workload: calling it as ``build(batch_size, device, **hyperparameters)``
makes the model, the optimizer and the data and returns ``step``. Only that call imports torch.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from dnnmem_tune.errors import UsageError

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.workloads.loop import Step

PRECISIONS = ("fp32", "fp16", "bf16", "bf16-pure")
"""``fp16``: autocast with a gradient scaler; ``bf16``: autocast; ``bf16-pure``: weights in bfloat16."""

_CHOICES: dict[str, tuple[object, ...]] = {
    "precision": PRECISIONS,
    "checkpointing": (False, True, "reentrant"),
    "zero_grad": ("start", "before_backward", "end"),
    "mode": ("train", "evaluate"),
}
_MOST_LISTED = 40
_STRUCTURE = ("model", "inputs", "loss", "checkpoint_blocks", "defaults")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A workload made of a model, an example batch, a loss and an optimizer.

    Calling it builds the workload. Hyperparameters given in the call go, by name, to the options
    below, to ``model`` and to ``inputs``; a name that none of them takes is an error.

    Raises:
        UsageError: If an option has a value that cannot be meant.

    Example:
        >>> def network(width: int = 256):
        ...     from torch import nn
        ...     return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        >>> def batch(batch_size: int):
        ...     import torch
        ...     return torch.randn(batch_size, 64), torch.randint(0, 10, (batch_size,))
        >>> build = TrainingStep(model=network, inputs=batch, loss="cross_entropy", optimizer="sgd(momentum=0.9)")
        >>> step = build(8, "cpu", width=32, precision="bf16")
        >>> step()
        >>> step.model[0].out_features
        32

    """

    model: Callable[..., Any]
    """Makes the model; called on the CPU with the hyperparameters that its signature names, then moved."""

    inputs: Callable[..., Any]
    """``inputs(batch_size, ...)``: one batch on the CPU, as a data loader yields it. A pair
    ``(inputs, targets)`` is used as ``loss(model(inputs), targets)``; a mapping as ``model(**batch)``."""

    loss: Callable[..., Any] | str | None = None
    """A function of the outputs (and targets), the name of one in ``torch.nn.functional``, or None:
    the outputs hold it, as ``outputs.loss`` (Hugging Face) or by being it."""

    optimizer: Callable[[Iterable[Any]], Any] | str = "adamw"
    """A class of ``torch.optim`` by name, with arguments if wanted: ``sgd(momentum=0.9, fused=True)``;
    or a function that takes the trainable parameters."""

    learning_rate: float | None = None
    """``lr`` of a named optimizer; None: its own default."""

    momentum: float | None = None
    """``momentum`` of a named optimizer."""

    weight_decay: float | None = None
    """``weight_decay`` of a named optimizer."""

    foreach: bool | None = None
    """``foreach`` of a named optimizer: many tensors in one kernel, at the price of temporaries."""

    fused: bool | None = None
    """``fused`` of a named optimizer: the whole update in one kernel."""

    precision: str = "fp32"
    """One of `PRECISIONS`."""

    accumulation: int = 1
    """Batches whose gradients are summed before the optimizer steps; ``batch_size`` is the size of one."""

    checkpointing: bool | str = False
    """Keep only the inputs of each block and recompute the rest in backward. True: the
    non-reentrant kind; ``"reentrant"``: the older one."""

    checkpoint_blocks: tuple[str, ...] = ()
    """Names of the module classes to checkpoint; empty: the model's own switch
    (``gradient_checkpointing_enable`` or ``set_grad_checkpointing``)."""

    clip_grad_norm: float | None = None
    """Largest norm of the gradients, if they are clipped."""

    zero_grad: str = "start"
    """Where gradients are cleared: at the ``start`` of the step, ``before_backward`` or at its ``end``."""

    set_to_none: bool = True
    """Clear gradients by releasing them; False: by filling them with zeros."""

    trainable: str = ""
    """Regular expression searched in parameter names: those without a match are frozen. Empty: train all."""

    channels_last: bool = False
    """Keep the model and its images in the channels-last memory format."""

    mode: str = "train"
    """``train``, or ``evaluate``: forward and loss only, without gradients."""

    defaults: Mapping[str, object] = field(default_factory=dict)
    """Hyperparameters that replace the defaults of ``model`` and ``inputs``."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                listed = ", ".join(str(choice) for choice in choices)
                raise UsageError(f"TrainingStep: {name}={value!r} is not known; choose one of {listed}")
        if isinstance(self.accumulation, bool) or not isinstance(self.accumulation, int) or self.accumulation < 1:
            raise UsageError(
                f"TrainingStep: accumulation={self.accumulation!r} must be a whole number of at least 1"
            )
        if hasattr(self.model, "named_parameters") and not isinstance(self.model, type):
            raise UsageError(
                f"TrainingStep: model is a {type(self.model).__name__} instance; pass the function or class that "
                "makes it, so that no weights exist before the estimate"
            )
        for name in ("model", "inputs"):
            if not callable(getattr(self, name)):
                raise UsageError(
                    f"TrainingStep: {name} must be a function, not {type(getattr(self, name)).__name__}"
                )

    @property
    def hyperparameters(self) -> dict[str, object]:
        """Return every hyperparameter that a call takes by name, with its default (None where it has none)."""
        return {**self._options(), **_accepted(self.model), **_accepted(self.inputs, skip=1), **self.defaults}

    def __call__(self, batch_size: int, device: Any, **hyperparameters: Any) -> Step:
        """Make the model, the optimizer and the batch on ``device``.

        Returns:
            A function without arguments that runs one training step; it has ``model`` and ``optimizer``.

        Raises:
            UsageError: If a hyperparameter is unknown or has a value that cannot be meant.

        """
        from dnnmem_tune.frontends.torch.workloads import loop

        self._check_names(hyperparameters)
        given = {**self.defaults, **hyperparameters}
        spec = replace(self, **{name: value for name, value in given.items() if name in self._options()})
        return loop.start(
            spec,
            model=self.model(**_select(self.model, given, self._options())),
            batch=self.inputs(batch_size, **_select(self.inputs, given, self._options(), skip=1)),
            device=device,
        )

    def _options(self) -> dict[str, object]:
        return {
            option.name: getattr(self, option.name) for option in fields(self) if option.name not in _STRUCTURE
        }

    def _check_names(self, hyperparameters: Mapping[str, Any]) -> None:
        if _takes_any(self.model) or _takes_any(self.inputs):
            return
        check_names(hyperparameters, self.hyperparameters, of="this workload")


def check_names(given: Iterable[str], accepted: Iterable[str], *, of: str) -> None:
    """Raise if a name is not among the accepted ones.

    Args:
        given: Names of hyperparameters.
        accepted: Those that may be given.
        of: What takes them, for the message.

    Raises:
        UsageError: For the first unknown name, with its near matches and the accepted names, unless those
            are so many that the near matches say more.

    """
    known = sorted(accepted)
    for name in given:
        if name not in known:
            listed = f"; it takes {', '.join(known) or 'none'}"
            alike = near(name, known)
            if alike and len(known) > _MOST_LISTED:
                listed = ""
            raise UsageError(f"{of} has no hyperparameter {name!r}{alike}{listed}")


def near(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that offers the names most like ``name``; empty if there are none."""
    folded = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), folded, n=3)
    return f" (did you mean {' or '.join(folded[match] for match in matches)}?)" if matches else ""


def _accepted(function: Callable[..., Any], skip: int = 0) -> dict[str, object]:
    """Parameters that can be given by name, less the first ``skip``, with their defaults."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    return {
        parameter.name: None if parameter.default is parameter.empty else parameter.default
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(function).parameters.values()
    )


def _select(
    function: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, object], skip: int = 0
) -> dict[str, Any]:
    """Of the given hyperparameters, those meant for ``function``."""
    accepted = _accepted(function, skip)
    any_name = _takes_any(function)
    return {name: value for name, value in given.items() if name in accepted or (any_name and name not in options)}
