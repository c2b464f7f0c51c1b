"""Built-in workloads are the published architectures, and run for real as well as on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dnnmem_tune.errors import UsageError, WorkloadError
from dnnmem_tune.frontends.torch.workloads import builtin

PARAMETERS = {
    "bert-base": 109_514_298,  # BertForMaskedLM, bert-base-uncased
    "bert-large": 335_174_458,  # BertForMaskedLM, bert-large-uncased
    "gpt2": 124_439_808,  # GPT2LMHeadModel, gpt2
    "inception_v3": 27_161_264,  # torchvision, with the auxiliary classifier
    # 33278 * 650 for the tied embedding, 2 layers of 4 * 650 * (650 + 650 + 2), 33278 decoder biases
    "lstm": 28_434_378,
    # (784 + 1) * 1024 + 2 * (1024 + 1) * 1024 + (1024 + 1) * 10
    "mlp": 2_913_290,
    "resnet50": 25_557_032,  # torchvision
    "unet": 31_037_698,  # milesial/Pytorch-UNet: 31,037,633 for one class, 65 more for the second
    "vgg16": 138_357_544,  # torchvision
    "vit_b_16": 86_567_656,  # torchvision
}

TEXT = {"seq_len": 8, "vocab_size": 50}
TINY: dict[str, dict[str, Any]] = {
    "bert-base": {**TEXT, "hidden_size": 16, "depth": 2, "num_heads": 2, "intermediate_size": 32},
    "bert-large": {**TEXT, "hidden_size": 16, "depth": 2, "num_heads": 2, "intermediate_size": 32},
    "gpt2": {**TEXT, "hidden_size": 16, "depth": 2, "num_heads": 2},
    "inception_v3": {"image_size": 75, "num_classes": 3, "aux_logits": False},
    "lstm": {**TEXT, "embedding_size": 16, "hidden_size": 16},
    "mlp": {"in_features": 6, "width": 8, "num_classes": 3},
    "resnet50": {"image_size": 32, "width": 4, "width_per_block": 4, "num_classes": 3},
    "unet": {"image_size": 32, "width": 2},
    "vgg16": {"image_size": 32, "width": 4, "hidden": 8, "num_classes": 3},
    "vit_b_16": {
        "image_size": 32,
        "hidden_size": 16,
        "depth": 2,
        "num_heads": 2,
        "mlp_size": 32,
        "num_classes": 3,
    },
}


@pytest.mark.parametrize("name", builtin.NAMES)
def test_parameters_are_as_many_as_published(name: str) -> None:
    """A missing bias or an untied weight shows here."""
    workload = builtin.load_builtin(name)
    with torch.device("meta"):
        model = workload.model(**workload.defaults)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", builtin.NAMES)
@pytest.mark.parametrize(
    "options",
    [{}, {"accumulation": 2, "checkpointing": True}, {"checkpointing": "reentrant", "precision": "bf16"}],
    ids=["plain", "accumulated and checkpointed", "reentrant in bf16"],
)
def test_one_step_reaches_every_parameter(name: str, options: dict[str, Any]) -> None:
    """It runs for real, at sizes that a CPU does in a moment, and no block is left without a gradient."""
    torch.manual_seed(0)
    step = builtin.load_builtin(name)(2, "cpu", **TINY[name], **options)
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    step()
    after = list(step.model.parameters())
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["resnet50", "unet", "gpt2"])
def test_checkpointing_saves_what_the_blocks_would_keep(name: str) -> None:
    """Fewer elements are saved for backward with it than without."""

    def saved(**options: Any) -> int:
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        step = builtin.load_builtin(name)(2, "cpu", **TINY[name], **options)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            inputs, _ = builtin.load_builtin(name).inputs(
                2,
                **{
                    key: value
                    for key, value in TINY[name].items()
                    if key in ("image_size", "seq_len", "vocab_size")
                },
            )
            step.model(inputs)
        return count

    assert saved(checkpointing=True) < 0.6 * saved()


@pytest.mark.slow
def test_inception_trains_its_auxiliary_classifier() -> None:
    """At the published image size, in training mode, it adds to the loss."""
    step = builtin.load_builtin("inception_v3")(2, "cpu")
    step()
    assert step.model.auxiliary.fc.weight.grad.any()


def test_names_do_not_mind_case_and_hyphens() -> None:
    """``bert-large`` is written in many ways."""
    assert builtin.load_builtin("BERT_Large") is builtin.load_builtin("bert-large")
    assert builtin.name_of(builtin.load_builtin("ViT-B-16")) == "vit_b_16"


def test_an_unknown_name_gets_its_near_matches() -> None:
    """And the list of all there are."""
    with pytest.raises(WorkloadError) as caught:
        builtin.load_builtin("resnet52")
    assert str(caught.value) == (
        "no built-in workload 'resnet52' (did you mean resnet50?); there are bert-base, bert-large, gpt2, "
        "inception_v3, lstm, mlp, resnet50, unet, vgg16, vit_b_16"
    )


def test_an_unknown_hyperparameter_names_those_there_are() -> None:
    """A typo in a study must not be dropped silently."""
    with pytest.raises(UsageError) as caught:
        builtin.load_builtin("mlp")(2, "cpu", widht=3)
    assert str(caught.value) == (
        "this workload has no hyperparameter 'widht' (did you mean width?); it takes accumulation, channels_last, "
        "checkpointing, clip_grad_norm, depth, dropout, foreach, fused, in_features, learning_rate, mode, "
        "momentum, num_classes, optimizer, precision, set_to_none, trainable, weight_decay, width, zero_grad"
    )


@pytest.mark.parametrize(
    ("name", "hyperparameters", "message"),
    [
        ("gpt2", {"seq_len": 9, "max_positions": 8}, "seq_len=9 is above max_positions=8; raise the latter too"),
        (
            "bert-base",
            {"seq_len": 9, "max_positions": 8},
            "seq_len=9 is above max_positions=8; raise the latter too",
        ),
        ("vit_b_16", {"image_size": 33}, "vit: image_size=33 is not a multiple of patch_size=16"),
        (
            "lstm",
            {"hidden_size": 8},
            "lstm: tied weights need hidden_size=8 equal to embedding_size=16; set both, or tied=false",
        ),
    ],
    ids=["gpt2", "bert", "vit", "lstm"],
)
def test_sizes_that_a_gpu_would_trip_over_are_refused(
    name: str, hyperparameters: dict[str, Any], message: str
) -> None:
    """On fake tensors no kernel would notice that an index is out of range."""
    with pytest.raises(UsageError) as caught:
        builtin.load_builtin(name)(2, "cpu", **{**TINY[name], **hyperparameters})()
    assert str(caught.value) == message
