"""The training step described by a `TrainingStep` does what the usual loop does, in its order."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

ImageBatch = tuple[torch.Tensor, torch.Tensor]

OPTIMIZERS = [
    "Adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw",
    "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd",
]  # fmt: skip


def network(width: int = 4) -> nn.Module:
    """A small classifier, so that steps are quick."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 2))


def batch(batch_size: int, scale: float = 1.0) -> ImageBatch:
    """The same images in every step."""
    images = scale * torch.arange(batch_size * 12, dtype=torch.float32).reshape(batch_size, 3, 2, 2) / 12
    return images, torch.arange(batch_size) % 2


def step_of(**options: Any) -> Callable[..., Any]:
    """The workload under test, with some options replaced."""
    usual: dict[str, Any] = {
        "model": network, "inputs": batch, "loss": "cross_entropy", "optimizer": "sgd(lr=0.5)",
    }  # fmt: skip
    return TrainingStep(**(usual | options))


def trained(build: Callable[..., Any], num_steps: int = 1, **hyperparameters: Any) -> dict[str, torch.Tensor]:
    """Parameters after some steps from the same start."""
    torch.manual_seed(0)
    step = build(4, "cpu", **hyperparameters)
    for _ in range(num_steps):
        step()
    return {name: parameter.detach().clone() for name, parameter in step.model.named_parameters()}


def by_hand(num_steps: int = 1, max_norm: float | None = None) -> dict[str, torch.Tensor]:
    """What `trained` must return, from the loop as people write it."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(num_steps):
        images, classes = batch(4)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_steps_train_as_the_loop_written_by_hand() -> None:
    """It is a real training step, so that it can be run on a GPU to check an estimate."""
    torch.testing.assert_close(trained(step_of(), num_steps=3), by_hand(num_steps=3))


@pytest.mark.parametrize(
    "options",
    [
        {"zero_grad": "before_backward"},
        {"zero_grad": "end"},
        {"set_to_none": False},
        {"accumulation": 3},
        {"accumulation": 2, "zero_grad": "before_backward"},
        {"channels_last": True},
        {"checkpointing": True, "checkpoint_blocks": ("Linear", "ReLU")},
        {"checkpointing": "reentrant", "checkpoint_blocks": ("Linear", "ReLU")},
        {"optimizer": "SGD(foreach=True)", "learning_rate": 0.5},
        {"fused": True},
    ],
    ids=str,
)
def test_options_that_only_move_memory_do_not_change_the_result(options: dict[str, Any]) -> None:
    """Accumulating equal batches, checkpointing and where gradients are cleared are the same arithmetic."""
    torch.testing.assert_close(trained(step_of(**options), num_steps=2), by_hand(num_steps=2))


def test_gradients_are_clipped_before_the_optimizer_steps() -> None:
    """The norm is taken over all gradients together."""
    torch.testing.assert_close(trained(step_of(clip_grad_norm=0.01)), by_hand(max_norm=0.01))


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"zero_grad": "end"}, None), ({"zero_grad": "end", "set_to_none": False}, 0.0)],
    ids=["released", "filled with zeros"],
)
def test_gradients_are_cleared_at_the_end_when_asked(options: dict[str, Any], expected: float | None) -> None:
    """Between steps nothing of them is left, or only zeros."""
    step = step_of(**options)(2, "cpu")
    step()
    gradients = [parameter.grad for parameter in step.model.parameters()]
    if expected is None:
        assert gradients == [None] * 4
    else:
        assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_outputs_and_loss_live_until_the_next_step_rebinds_them() -> None:
    """The names of a loop stay bound; freeing them early would hide an overlap of two iterations."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = nn.functional.cross_entropy(outputs, targets)
        seen.extend([weakref.ref(outputs), weakref.ref(value)])
        return value

    step = step_of(loss=loss)(2, "cpu")
    step()
    assert all(reference() is not None for reference in seen)
    step()
    assert [reference() is None for reference in seen] == [True, True, False, False]


def test_the_previous_batch_is_released_before_the_next_is_moved() -> None:
    """The loader rebinds the name first, so two batches are never on the device together."""
    alive_on_entry: list[int] = []
    batches: list[weakref.ref[torch.Tensor]] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            alive_on_entry.append(sum(reference() is not None for reference in batches))
            batches.append(weakref.ref(images))
            out: torch.Tensor = self.linear(images.flatten(1))
            return out

    # channels_last makes the move a copy on the CPU too
    step = step_of(model=Watching, channels_last=True)(2, "cpu")
    for _ in range(3):
        step()
    assert alive_on_entry == [0, 0, 0]


@pytest.mark.parametrize(
    ("precision", "weights", "outputs"),
    [
        ("fp32", torch.float32, torch.float32),
        ("fp16", torch.float32, torch.float16),
        ("bf16", torch.float32, torch.bfloat16),
        ("bf16-pure", torch.bfloat16, torch.bfloat16),
    ],
)
def test_precision_decides_the_type_of_weights_and_activations(
    precision: str, weights: torch.dtype, outputs: torch.dtype
) -> None:
    """Autocast keeps the weights in fp32 and computes in half; the pure mode has no fp32 at all."""
    types: list[torch.dtype] = []

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        types.append(logits.dtype)
        return nn.functional.cross_entropy(logits, targets)

    step = step_of(loss=loss, precision=precision)(2, "cpu")
    step()
    assert types == [outputs]
    assert {parameter.dtype for parameter in step.model.parameters()} == {weights}


def test_frozen_parameters_get_no_gradient_and_no_optimizer_state() -> None:
    """That is the point of adapters such as LoRA."""
    step = step_of(trainable=r"^3\.", optimizer="adam")(2, "cpu")
    step()
    assert [parameter.grad is None for parameter in step.model.parameters()] == [True, True, False, False]
    assert len(step.optimizer.state) == 2


def test_evaluation_takes_no_gradients_and_has_no_optimizer() -> None:
    """Forward and loss only, with dropout and batch norm in evaluation mode."""
    step = step_of(mode="evaluate")(2, "cpu")
    step()
    assert step.optimizer is None
    assert not step.model.training
    assert all(parameter.grad is None for parameter in step.model.parameters())


def test_lbfgs_gets_a_closure() -> None:
    """It evaluates the loss several times in one step."""
    calls: list[float] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = nn.functional.cross_entropy(outputs, targets)
        calls.append(value.item())
        return value

    step_of(loss=loss, optimizer="lbfgs(max_iter=3)")(4, "cpu")()
    assert len(calls) == 3
    assert calls[-1] < calls[0]


def test_a_mapping_is_spread_over_the_models_arguments() -> None:
    """That is how Hugging Face models are called; they return their loss."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            error: torch.Tensor = self.linear(left) - right
            return error.square().mean()

    def pairs(batch_size: int) -> dict[str, torch.Tensor]:
        return {"left": torch.ones(batch_size, 3), "right": torch.ones(batch_size, 1)}

    step = TrainingStep(model=Pair, inputs=pairs)(2, "cpu")
    step()
    assert step.model.linear.weight.grad is not None


def test_hyperparameters_reach_the_model_the_batch_and_the_options() -> None:
    """Each by its name; defaults of the workload stand behind those of the call."""
    build = TrainingStep(model=network, inputs=batch, loss="cross_entropy", defaults={"width": 6, "scale": 2.0})
    assert (build.hyperparameters["width"], build.hyperparameters["precision"]) == (6, "fp32")
    assert build(2, "cpu").model[1].out_features == 6
    step = build(2, "cpu", width=8, scale=0.0, optimizer="rmsprop", weight_decay=0.25)
    step()
    assert step.model[1].out_features == 8
    assert not step.model[1].weight.grad.any()  # scale=0 made every input zero
    assert isinstance(step.optimizer, torch.optim.RMSprop)
    assert step.optimizer.defaults["weight_decay"] == 0.25


def test_an_optimizer_may_be_a_function() -> None:
    """For parameter groups and optimizers from elsewhere."""
    step = step_of(optimizer=lambda parameters: torch.optim.Adagrad(parameters, lr=0.1))(2, "cpu")
    assert isinstance(step.optimizer, torch.optim.Adagrad)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_torch_go_by_name(name: str) -> None:
    """Whatever the case, and a step works with their own defaults."""
    step = step_of(optimizer=name)(2, "cpu")
    step()
    assert type(step.optimizer).__name__.lower() == name.lower()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"precision": "fp8"},
            "TrainingStep: precision='fp8' is not known; choose one of fp32, fp16, bf16, bf16-pure",
        ),
        (
            {"zero_grad": "never"},
            "TrainingStep: zero_grad='never' is not known; choose one of start, before_backward, end",
        ),
        ({"accumulation": 0}, "TrainingStep: accumulation=0 must be a whole number of at least 1"),
        ({"accumulation": 1.5}, "TrainingStep: accumulation=1.5 must be a whole number of at least 1"),
        (
            {"checkpointing": "yes"},
            "TrainingStep: checkpointing='yes' is not known; choose one of False, True, reentrant",
        ),
        (
            {"model": nn.Linear(1, 1)},
            "TrainingStep: model is a Linear instance; pass the function or class that makes it, so that no "
            "weights exist before the estimate",
        ),
        ({"inputs": 3}, "TrainingStep: inputs must be a function, not int"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_meaningless_options_are_refused_where_they_are_written(options: dict[str, Any], message: str) -> None:
    """Before any model is made."""
    with pytest.raises(UsageError) as caught:
        step_of(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        (
            {"widht": 3},
            "this workload has no hyperparameter 'widht' (did you mean width?); it takes accumulation, ",
        ),
        (
            {"optimizer": "adamm"},
            "torch.optim has no optimizer 'adamm' (did you mean adam or radam or nadam?); it has ",
        ),
        ({"optimizer": "sgd(0.1)"}, "optimizer 'sgd(0.1)' is not understood; write a name, or a call such as "),
        ({"optimizer": "sgd(lr="}, "optimizer 'sgd(lr=' is not understood; write a name, or a call such as "),
        (
            {"optimizer": "adam", "momentum": 0.9},
            "optimizer adam has no hyperparameter 'momentum'; it takes amsgrad, ",
        ),
        ({"trainable": "nothing"}, "the model has no parameter to train; check 'trainable' and requires_grad"),
        (
            {"checkpointing": True},
            "checkpointing is asked for, but Sequential has no switch for it; name the classes ",
        ),
        (
            {"optimizer": "lbfgs", "accumulation": 2},
            "LBFGS works neither with precision='fp16' (no gradient scaler) nor ",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_hyperparameters_are_named(hyperparameters: dict[str, Any], message: str) -> None:
    """The message names what was given and what there is."""
    with pytest.raises(UsageError) as caught:
        step_of()(2, "cpu", **hyperparameters)()
    assert str(caught.value).startswith(message)


def test_a_loss_that_does_not_exist_is_named() -> None:
    """With its near matches in ``torch.nn.functional``."""
    with pytest.raises(
        UsageError, match=r"^torch.nn.functional has no loss 'cross_entropi' \(did you mean cross_entropy"
    ):
        step_of(loss="cross_entropi")(2, "cpu")()


def test_outputs_without_a_loss_are_refused() -> None:
    """Where no loss is given, the model must return one."""
    build = TrainingStep(
        model=lambda: nn.LSTM(2, 2), inputs=lambda batch_size: (torch.ones(1, batch_size, 2), None)
    )
    with pytest.raises(UsageError, match=r"^the model returned tuple without a loss; give TrainingStep a loss=$"):
        build(2, "cpu")()


def test_blocks_that_the_model_lacks_are_named() -> None:
    """A typo in a class name must not silently switch checkpointing off."""
    with pytest.raises(
        UsageError, match=r"^checkpointing is asked for, but Sequential has no module of class Blok; "
    ):
        step_of(checkpointing=True, checkpoint_blocks=("Blok",))(2, "cpu")


def test_a_training_step_can_be_described_without_torch() -> None:
    """A study may describe its workloads on a machine that has no torch."""
    program = (
        "import sys; sys.modules['torch'] = None; import dnnmem_tune;"
        "print(dnnmem_tune.TrainingStep(model=dict, inputs=list, optimizer='sgd').optimizer)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("sgd\n", "")
