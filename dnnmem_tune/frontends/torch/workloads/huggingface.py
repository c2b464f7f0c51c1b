"""Workloads from a Hugging Face configuration: no weights are needed, and none are fetched.

The model is trained as the library's own Trainer does it: the loss is the model's, AdamW, gradients
clipped at 1, no key-value cache. Keys of the configuration are hyperparameters too, so
``num_hidden_layers=4`` works.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dnnmem_tune.errors import MissingPackageError, UsageError, WorkloadError
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep, near

_AUTO_CLASSES = {
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "image-classification": "AutoModelForImageClassification",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
"""Task -> class that chooses the model. Where no task is said, the first that knows the configuration is used."""

_PER_SEQUENCE = ("SequenceClassification", "ImageClassification", "NextSentencePrediction")
"""Parts of the names of classes that take one label for each sequence or image."""

_NOT_SETTINGS = ("transformers_version", "architectures", "model_type", "auto_map", "_name_or_path", "dtype")
_LONGEST_DEFAULT = 512
_DEFAULT_IMAGE_SIZE = 224
_MAX_SPEECH_TARGET = 448
"""Tokens of a transcript, where the configuration does not say (Whisper's ``max_target_positions``)."""


def load_huggingface(path: Path) -> TrainingStep:
    """Return the workload that trains the model of a configuration.

    Hyperparameters beyond those of `TrainingStep`: ``task`` (a key such as ``causal-lm``; else the
    configuration's ``architectures``), ``seq_len``, ``target_len`` (encoder-decoder), ``image_size``,
    ``attention_mask`` (send one, as padded batches have), ``attn_implementation``, and every key of the
    configuration. Weights are in fp32 unless ``precision`` is ``bf16-pure``, whatever ``dtype`` the file names.

    Args:
        path: A JSON file, or a directory with a ``config.json``.

    Raises:
        WorkloadError: If it is missing, is no configuration, or is of a kind that transformers does not know.
        MissingPackageError: If transformers is not installed.

    """
    source = _Source(path)
    return TrainingStep(model=source.model_factory(), inputs=source.batch_factory(), clip_grad_norm=1.0)


class _Source:
    """A configuration file, and the model and batches made from it."""

    def __init__(self, path: Path) -> None:
        self.file = path / "config.json" if path.is_dir() else path
        self.settings = _read(self.file)
        config = self._config({})
        self.defaults = {
            key: value
            for key, value in config.to_dict().items()
            if key not in _NOT_SETTINGS and key.isidentifier() and not key.startswith("_")
        }
        aliases: Mapping[str, str] = getattr(config, "attribute_map", {})
        self.defaults |= {alias: self.defaults[key] for alias, key in aliases.items() if key in self.defaults}
        self.defaults["num_labels"] = config.num_labels
        text = config.get_text_config()
        self.longest = getattr(text, "max_position_embeddings", None) or _LONGEST_DEFAULT
        self.image_size = _image_size(config)

    def model_factory(self) -> Any:
        def model(task: str = "", attn_implementation: str = "", **overrides: Any) -> Any:
            config = self._config(overrides)
            options = {"attn_implementation": attn_implementation} if attn_implementation else {}
            model_class = self._model_class(config, task)
            return model_class._from_config(config, dtype=torch.float32, **options)

        return self._with_signature(model)

    def batch_factory(self) -> Any:
        def batch(
            batch_size: int,
            task: str = "",
            seq_len: int = min(_LONGEST_DEFAULT, self.longest),
            target_len: int | None = None,
            image_size: int = self.image_size,
            attention_mask: bool = False,
            **overrides: Any,
        ) -> dict[str, Any]:
            config = self._config(overrides)
            model_class = self._model_class(config, task)
            self._check_length(config, seq_len)
            made = _modalities(model_class, config, batch_size, seq_len, image_size, attention_mask)
            return made | _labels(model_class, config, batch_size, seq_len, target_len)

        return self._with_signature(batch)

    def _check_length(self, config: Any, seq_len: int) -> None:
        """Learned positions have an end; no error would tell before the kernel runs."""
        text = config.get_text_config()
        longest = getattr(text, "max_position_embeddings", None)
        if longest is not None and seq_len > longest and not getattr(text, "rope_parameters", None):
            raise UsageError(
                f"{self.file}: seq_len={seq_len} is above max_position_embeddings={longest}; raise the latter too"
            )

    def _with_signature(self, function: Any) -> Any:
        """Let the settings of the configuration stand in the signature in place of ``**overrides``."""
        own = [
            item for item in inspect.signature(function).parameters.values() if item.kind is not item.VAR_KEYWORD
        ]
        names = {item.name for item in own}
        settings = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in self.defaults.items()
            if name not in names
        ]
        function.__signature__ = inspect.Signature([*own, *settings])
        return function

    def _config(self, overrides: Mapping[str, Any]) -> Any:
        transformers = _transformers(self.file)
        settings = {**self.settings, **overrides}
        model_type = settings.pop("model_type")
        try:
            return _prepared(transformers.AutoConfig.for_model(model_type, **settings), overrides)
        except (ValueError, TypeError, KeyError) as error:
            known = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
            if model_type not in known:
                own_code = (
                    "; it needs code of its own (auto_map), which is not run" if "auto_map" in settings else ""
                )
                raise WorkloadError(
                    f"{self.file}: transformers {transformers.__version__} knows no model_type "
                    f"{model_type!r}{near(model_type, known)}{own_code}"
                ) from error
            raise WorkloadError(f"{self.file}: {_one_line(error)}") from error
        except (ImportError, RuntimeError) as error:
            raise self._cannot_import(error) from error
        except Exception as error:  # huggingface_hub's validation errors share no base class with the above
            raise WorkloadError(f"{self.file}: {_one_line(error)}") from error

    def _model_class(self, config: Any, task: str) -> Any:
        transformers = _transformers(self.file)
        try:
            if task:
                return _class_for_task(transformers, config, task, self.file)
            for name in config.architectures or ():
                found = getattr(transformers, name, None)
                if found is not None and _has_loss(found):
                    return found
            for auto_class in ("AutoModel", *_AUTO_CLASSES.values()):
                mapping = getattr(transformers, auto_class)._model_mapping
                if type(config) in mapping and _has_loss(mapping[type(config)]):
                    return mapping[type(config)]
        except (ImportError, RuntimeError) as error:
            raise self._cannot_import(error) from error
        raise WorkloadError(
            f"{self.file}: no model with a loss is known for model_type {config.model_type!r}; write a build "
            "function"
        )

    def _cannot_import(self, error: BaseException) -> WorkloadError:
        """The import's own reason, below the layers that transformers wraps around it."""
        while error.__cause__ is not None:
            error = error.__cause__
        return WorkloadError(f"{self.file}: transformers cannot import the model: {_one_line(error)}")


def _prepared(config: Any, overrides: Mapping[str, Any]) -> Any:
    """Set what training needs and configurations often leave out."""
    if hasattr(config, "use_cache") and "use_cache" not in overrides:
        config.use_cache = False  # as the Trainer does; the cache would keep every key and value alive
    text = config.get_text_config()
    if getattr(text, "pad_token_id", None) is None:
        text.pad_token_id = 0  # decoders that classify refuse batches above 1 without one
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = text.pad_token_id
    return config


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise WorkloadError(f"no configuration {str(file)!r}; give a JSON file, or a directory with a config.json")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkloadError(f"{file}: not JSON: {error}") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise WorkloadError(f"{file}: no 'model_type' in it; give the config.json of a Hugging Face model")
    return settings


def _transformers(file: Path) -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise WorkloadError(f"{file}: transformers cannot be imported: {error}") from error
        raise MissingPackageError(
            "hf: needs the package 'transformers', which is not installed; run pip install transformers"
        ) from error


def _class_for_task(transformers: ModuleType, config: Any, task: str, file: Path) -> Any:
    if task not in _AUTO_CLASSES:
        raise UsageError(f"no task {task!r}{near(task, _AUTO_CLASSES)}; choose one of {', '.join(_AUTO_CLASSES)}")
    mapping = getattr(transformers, _AUTO_CLASSES[task])._model_mapping
    if type(config) not in mapping:
        raise UsageError(f"{file}: model_type {config.model_type!r} has no model for the task {task!r}")
    return mapping[type(config)]


def _has_loss(model_class: Any) -> bool:
    return bool(_forward_names(model_class) & {"labels", "start_positions", "return_loss"})


def _forward_names(model_class: Any) -> set[str]:
    return set(inspect.signature(model_class.forward).parameters)


def _modalities(
    model_class: Any, config: Any, batch_size: int, seq_len: int, image_size: int, attention_mask: bool
) -> dict[str, Any]:
    """What the model reads: text, images, both, or the spectrogram of speech."""
    main = model_class.main_input_name
    names = _forward_names(model_class)
    if main == "input_features":
        frames = 2 * config.max_source_positions  # the encoder halves them
        return {"input_features": torch.randn(batch_size, config.num_mel_bins, frames)}
    if main not in ("input_ids", "pixel_values"):
        raise WorkloadError(
            f"{model_class.__name__} reads {main!r}; hf: makes input_ids, pixel_values and input_features only, "
            "so write a build function"
        )
    made: dict[str, Any] = {}
    if main == "input_ids":
        vocab_size = config.get_text_config().vocab_size
        made["input_ids"] = torch.randint(0, vocab_size, (batch_size, seq_len))
        if attention_mask:
            made["attention_mask"] = torch.ones(batch_size, seq_len, dtype=torch.long)
    if main == "pixel_values" or "return_loss" in names:
        channels = getattr(_vision_config(config), "num_channels", 3)
        made["pixel_values"] = torch.randn(batch_size, channels, image_size, image_size)
    return made


def _labels(
    model_class: Any, config: Any, batch_size: int, seq_len: int, target_len: int | None
) -> dict[str, torch.Tensor | bool]:
    """What the model's own loss needs."""
    name, names = model_class.__name__, _forward_names(model_class)
    if "return_loss" in names:
        return {"return_loss": True}
    if "start_positions" in names:
        ends = torch.randint(0, seq_len, (2, batch_size))
        return {"start_positions": ends[0], "end_positions": ends[1]}
    if any(part in name for part in _PER_SEQUENCE):
        if config.num_labels == 1:
            return {"labels": torch.randn(batch_size)}  # a regression
        return {"labels": torch.randint(0, config.num_labels, (batch_size,))}
    if "TokenClassification" in name:
        return {"labels": torch.randint(0, config.num_labels, (batch_size, seq_len))}
    length = seq_len
    if model_class.main_input_name == "input_features":
        length = target_len or int(getattr(config, "max_target_positions", _MAX_SPEECH_TARGET))
    elif config.is_encoder_decoder:
        length = target_len or seq_len
    labels: dict[str, torch.Tensor | bool] = {
        "labels": torch.randint(0, config.get_text_config().vocab_size, (batch_size, length))
    }
    if "next_sentence_label" in names:
        labels["next_sentence_label"] = torch.randint(0, 2, (batch_size,))
    return labels


def _vision_config(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _image_size(config: Any) -> int:
    size: Any = getattr(_vision_config(config), "image_size", None)
    if size is None:
        return _DEFAULT_IMAGE_SIZE
    return int(size if isinstance(size, int) else size[0])


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
