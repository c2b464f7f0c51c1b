"""Models of the transformers package, made from a configuration: nothing is downloaded."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import transformers

# name: (configuration, model, fields that differ from the configuration's defaults)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", {}),
    "bert_classifier": ("BertConfig", "BertForSequenceClassification", {"num_labels": 2}),
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM", {}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "opt": ("OPTConfig", "OPTForCausalLM", {"word_embed_proj_dim": 768}),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
        },
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {
            "vocab_size": 65536,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 12,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
        },
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", {"decoder_start_token_id": 0}),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6},
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", {"num_labels": 1000}),
    "swin": ("SwinConfig", "SwinForImageClassification", {"num_labels": 1000}),
}


def make_batch(
    net: str, model: Any, batch_size: int, length: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return the named inputs of one batch."""
    if net in ("vit", "swin"):
        pixels = torch.randn(batch_size, 3, 224, 224, device=device)
        return {"pixel_values": pixels, "labels": torch.randint(1000, (batch_size,), device=device)}
    tokens = torch.randint(4, 30000, (batch_size, length), device=device)
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    if net == "bert_classifier":
        batch["labels"] = torch.randint(2, (batch_size,), device=device)
    return batch


def build(
    batch_size: int,
    device: torch.device,
    *,
    net: str = "bert",
    length: int = 128,
    attention: str = "sdpa",
    precision: str = "float32",
    optimizer: str = "AdamW",
    fused: bool | None = None,
    checkpointing: bool = False,
    max_norm: float | None = 1.0,
    fields: dict[str, Any] | None = None,
) -> Callable[[], object]:
    """Return one step as a script's loop makes it; ``outputs`` and ``loss`` stay bound between steps.

    Options:
        length: Tokens in a sequence; unused for images.
        attention: ``sdpa`` or ``eager``.
        precision: ``float32``, ``float16`` (autocast and scaler), ``bfloat16`` (autocast) or ``pure`` (bfloat16
            weights).
        checkpointing: Recompute each layer in the backward pass.
        fields: Fields of the configuration to change.

    """
    config_name, class_name, defaults = MODELS[net]
    config = getattr(transformers, config_name)(**{**defaults, **(fields or {})})
    config._attn_implementation = attention
    config.use_cache = False
    model = getattr(transformers, class_name)(config).to(device).train()
    if precision == "pure":
        model = model.to(torch.bfloat16)
    if checkpointing:
        model.gradient_checkpointing_enable()
    arguments = {"fused": fused} if fused is not None else {}
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=5e-5, **arguments)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")
    cast = torch.autocast(
        device.type,
        dtype=torch.float16 if precision == "float16" else torch.bfloat16,
        enabled=precision in ("float16", "bfloat16"),
    )
    batch = make_batch(net, model, batch_size, length, device)
    if precision == "pure" and "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].to(torch.bfloat16)

    def loop() -> Iterator[None]:
        while True:
            with cast:
                outputs = model(**batch)
                loss = outputs.loss
            scaler.scale(loss).backward()
            if max_norm is not None:
                scaler.unscale_(update)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(update)
            scaler.update()
            update.zero_grad()
            yield

    return partial(next, loop())
