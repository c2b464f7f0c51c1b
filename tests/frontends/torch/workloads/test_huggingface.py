"""A Hugging Face configuration is enough to train the model that it describes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dnnmem_tune.errors import MissingPackageError, UsageError, WorkloadError
from dnnmem_tune.frontends.torch.workloads.huggingface import load_huggingface
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
_TINY_PAIR = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 50,
}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": {"architectures": ["BertModel"], "vocab_size": 50, "pad_token_id": 0, **_TINY},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0},
    "llama": {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "vocab_size": 50, **_TINY},
    "t5": {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 50},
    "vit": {"image_size": 32, "num_labels": 5, **_TINY},
    "whisper": {
        **_TINY_PAIR, "max_source_positions": 8, "max_target_positions": 4, "num_mel_bins": 4,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    },
    "clip": {
        "architectures": ["CLIPModel"],
        "projection_dim": 8,
        "text_config": {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, **_TINY},
        "vision_config": {"image_size": 32, "patch_size": 16, **_TINY},
    },
}  # fmt: skip


@pytest.fixture
def workload(tmp_path: Path, request: pytest.FixtureRequest) -> TrainingStep:
    """The workload of one of the tiny configurations, by its model type."""
    return made(tmp_path, request.param)


def made(directory: Path, model_type: str, **settings: Any) -> TrainingStep:
    """The workload of a tiny configuration, with some keys replaced."""
    file = directory / f"{model_type}.json"
    file.write_text(json.dumps({"model_type": model_type, **CONFIGURATIONS[model_type], **settings}))
    return load_huggingface(file)


@pytest.mark.parametrize(
    ("workload", "model", "batch"),
    [
        ("bert", "BertForMaskedLM", {"input_ids": (2, 8), "labels": (2, 8)}),
        ("gpt2", "GPT2LMHeadModel", {"input_ids": (2, 8), "labels": (2, 8)}),
        ("llama", "LlamaForCausalLM", {"input_ids": (2, 8), "labels": (2, 8)}),
        ("t5", "T5ForConditionalGeneration", {"input_ids": (2, 8), "labels": (2, 8)}),
        ("vit", "ViTForImageClassification", {"pixel_values": (2, 3, 32, 32), "labels": (2,)}),
        ("whisper", "WhisperForConditionalGeneration", {"input_features": (2, 4, 16), "labels": (2, 4)}),
        ("clip", "CLIPModel", {"input_ids": (2, 8), "pixel_values": (2, 3, 32, 32), "return_loss": True}),
    ],
    indirect=["workload"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_modality_trains(workload: TrainingStep, model: str, batch: dict[str, Any]) -> None:
    """The class, the inputs and the labels follow from the configuration."""
    made_batch = workload.inputs(2, seq_len=8)
    assert {key: getattr(value, "shape", value) for key, value in made_batch.items()} == batch
    step = workload(2, "cpu", seq_len=8)
    step()
    assert type(step.model).__name__ == model
    assert all(parameter.dtype == torch.float32 for parameter in step.model.parameters())
    assert sum(parameter.grad is not None for parameter in step.model.parameters()) > 0


@pytest.mark.parametrize(
    ("task", "model", "labels"),
    [
        ("causal-lm", "BertLMHeadModel", {"labels": (2, 8)}),
        ("sequence-classification", "BertForSequenceClassification", {"labels": (2,)}),
        ("token-classification", "BertForTokenClassification", {"labels": (2, 8)}),
        ("question-answering", "BertForQuestionAnswering", {"start_positions": (2,), "end_positions": (2,)}),
    ],
)
def test_a_task_chooses_the_head(tmp_path: Path, task: str, model: str, labels: dict[str, Any]) -> None:
    """And the labels that it learns from."""
    workload = made(tmp_path, "bert")
    batch = workload.inputs(2, seq_len=8, task=task)
    assert {key: value.shape for key, value in batch.items() if key != "input_ids"} == labels
    step = workload(2, "cpu", seq_len=8, task=task)
    step()
    assert type(step.model).__name__ == model


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer"])
def test_keys_of_the_configuration_are_hyperparameters(tmp_path: Path, name: str) -> None:
    """Under the model's own name and under the common one, and what follows from them is made anew."""
    step = made(tmp_path, "gpt2")(2, "cpu", seq_len=8, **{name: 1, "vocab_size": 30})
    assert len(step.model.transformer.h) == 1
    assert step.model.transformer.wte.num_embeddings == 30


def test_the_cache_of_keys_and_values_is_off_in_training(tmp_path: Path) -> None:
    """As the Trainer does it, whatever the file says; it can be asked for."""
    workload = made(tmp_path, "gpt2", use_cache=True)
    assert not workload(2, "cpu", seq_len=8).model.config.use_cache
    assert workload(2, "cpu", seq_len=8, use_cache=True).model.config.use_cache


def test_checkpointing_uses_the_models_own_switch(tmp_path: Path) -> None:
    """Every layer is checkpointed; a model without the switch says so."""
    workload = made(tmp_path, "llama")
    assert not _checkpointed_layers(workload(2, "cpu", seq_len=8))
    assert len(_checkpointed_layers(workload(2, "cpu", seq_len=8, checkpointing=True))) == 2
    resnet = tmp_path / "resnet.json"
    resnet.write_text(
        json.dumps({"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [4], "depths": [1]})
    )
    with pytest.raises(
        UsageError, match=r"^checkpointing is asked for, but ResNetForImageClassification does not supp"
    ):
        load_huggingface(resnet)(2, "cpu", checkpointing=True)


def _checkpointed_layers(step: Any) -> list[torch.nn.Module]:
    return [layer for layer in step.model.model.layers if layer.gradient_checkpointing]


def test_frozen_parameters_and_attention_are_options(tmp_path: Path) -> None:
    """``trainable`` leaves one projection, ``attention_mask`` sends what padded batches have."""
    workload = made(tmp_path, "llama")
    assert workload.inputs(2, seq_len=8, attention_mask=True)["attention_mask"].shape == (2, 8)
    step = workload(2, "cpu", seq_len=8, attention_mask=True, trainable="q_proj", attn_implementation="eager")
    step()
    assert sum(parameter.requires_grad for parameter in step.model.parameters()) == 2
    assert step.model.config._attn_implementation == "eager"


def test_a_directory_stands_for_its_configuration(tmp_path: Path) -> None:
    """As the models on the hub are laid out."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **CONFIGURATIONS["bert"]}))
    assert load_huggingface(tmp_path).hyperparameters["hidden_size"] == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "no 'model_type' in it; give the config.json of a Hugging Face model"),
        ('{"model_type": "lama"}', "knows no model_type 'lama' (did you mean llama or mllama or llama4?)"),
        (
            '{"model_type": "acme-9", "auto_map": {}}',
            "knows no model_type 'acme-9'; it needs code of its own (auto_map), which is not run",
        ),
        ('{"model_type": "bert", "hidden_size": "x"}', "expected int, got str (value: 'x')"),
    ],
    ids=["no JSON", "no configuration", "unknown", "own code", "wrong type"],
)
def test_a_bad_configuration_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    """With the file's name in front."""
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load_huggingface(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"task": "masked-l"}, "no task 'masked-l' (did you mean masked-lm?); choose one of seq2seq-lm, "),
        (
            {"task": "image-classification"},
            "bert.json: model_type 'bert' has no model for the task 'image-classification'",
        ),
        ({"seq_len": 513}, "bert.json: seq_len=513 is above max_position_embeddings=512; raise the latter too"),
        (
            {"num_hidden_layer": 2},
            "this workload has no hyperparameter 'num_hidden_layer' (did you mean num_hidden_la",
        ),
    ],
    ids=["task", "task of another model", "length", "key"],
)
def test_impossible_hyperparameters_are_named(
    tmp_path: Path, hyperparameters: dict[str, Any], message: str
) -> None:
    """Before a model is trained on them."""
    with pytest.raises(UsageError) as caught:
        made(tmp_path, "bert")(2, "cpu", **hyperparameters)
    assert message in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """Nothing is looked up on the network."""
    with pytest.raises(WorkloadError) as caught:
        load_huggingface(tmp_path / "gpt9")
    assert str(caught.value) == (
        f"no configuration '{tmp_path}/gpt9'; give a JSON file, or a directory with a config.json"
    )


def test_a_model_that_cannot_be_imported_gives_the_imports_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library wraps it in advice that does not help; a broken torchvision is the usual cause."""
    monkeypatch.setitem(sys.modules, "transformers.models.electra.modeling_electra", None)
    file = tmp_path / "electra.json"
    file.write_text('{"model_type": "electra"}')
    with pytest.raises(WorkloadError) as caught:
        load_huggingface(file)(2, "cpu")
    assert str(caught.value) == (
        f"{file}: transformers cannot import the model: ModuleNotFoundError: import of "
        "transformers.models.electra.modeling_electra halted; None in sys.modules"
    )


def test_a_missing_package_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to install it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError) as caught:
        made(tmp_path, "bert")
    assert str(caught.value) == (
        "hf: needs the package 'transformers', which is not installed; run pip install transformers"
    )
