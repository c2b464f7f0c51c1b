"""The networks and language models behind the measured peaks, trained as they were measured.

Layouts are those of ``torchvision.models`` and of ``transformers``; weights are random. The loop is the one
of the measured runs: gradients are dropped at the start of each iteration, and ``batch``,
``outputs`` and ``loss`` stay bound until the next one replaces them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

IMAGE_SIZE = 86
NUM_TOKENS = 128

# expansion, channels, blocks, stride
_MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project."""

    def __init__(self, channels: int, out: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = channels * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        ]
        self.conv = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


def mobilenet_v2(num_classes: int) -> nn.Module:
    """Return the network of ``torchvision.models.mobilenet_v2``."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(inplace=True)]
    channels = 32
    for expansion, out, num_blocks, stride in _MOBILENET_V2:
        for block in range(num_blocks):
            layers.append(InvertedResidual(channels, out, expansion, stride if block == 0 else 1))
            channels = out
    layers += [nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, num_classes)
    )


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation of channels in NCHW order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    """Reorder axes."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(self.order)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, perceptron, layer scale, stochastic depth."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = nn.Parameter(torch.full((width, 1, 1), 1e-6))
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.layer_scale * self.block(x)
        if self.drop:
            noise = torch.empty([result.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device)
            noise = noise.bernoulli_(1 - self.drop).div_(1 - self.drop)
            result = result * noise
        result += x
        return result


def convnext_tiny(num_classes: int) -> nn.Module:
    """Return the network of ``torchvision.models.convnext_tiny``."""
    depths, widths = (3, 3, 9, 3), (96, 192, 384, 768)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4), ChannelNorm(widths[0], eps=1e-6)]
    position = 0
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            layers += [ChannelNorm(widths[stage - 1], eps=1e-6), nn.Conv2d(widths[stage - 1], width, 2, stride=2)]
        for _ in range(depth):
            layers.append(ConvNeXtBlock(width, 0.1 * position / (sum(depths) - 1)))
            position += 1
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), ChannelNorm(widths[-1], eps=1e-6), nn.Flatten(),
        nn.Linear(widths[-1], num_classes),
    )  # fmt: skip


def _network(name: str, num_classes: int) -> nn.Module:
    from dnnmem_tune.frontends.torch.workloads.builtin.resnet import resnet
    from dnnmem_tune.frontends.torch.workloads.builtin.vgg import vgg

    networks: dict[str, Callable[[], nn.Module]] = {
        "mobilenet_v2": lambda: mobilenet_v2(num_classes),
        "convnext_tiny": lambda: convnext_tiny(num_classes),
        "resnet50": lambda: resnet(num_classes=num_classes),
        "resnet101": lambda: resnet(depths=(3, 4, 23, 3), num_classes=num_classes),
        "vgg16": lambda: vgg(num_classes=num_classes),
    }
    return networks[name]()


def _language_model(name: str) -> nn.Module:
    """Return a model from its published configuration, with the attention its release of 4.51 had."""
    import transformers

    if name in ("gpt2", "distilgpt2"):
        config = transformers.GPT2Config(n_layer=12 if name == "gpt2" else 6)
        return transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
    if name == "opt-125m":
        return transformers.OPTForCausalLM._from_config(transformers.OPTConfig(), attn_implementation="sdpa")
    if name == "gpt-neo-125m":
        config = transformers.GPTNeoConfig(
            hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]]
        )
        return transformers.GPTNeoForCausalLM._from_config(config, attn_implementation="eager")
    config = transformers.T5Config(
        d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")


def build(
    batch_size: int,
    device: torch.device,
    *,
    network: str = "resnet50",
    optimizer: str = "SGD",
    image_size: int = IMAGE_SIZE,
    num_classes: int = 10,
    momentum: float = 0.0,
) -> Callable[[], None]:
    """Return one training step of a network on images, in single precision."""
    model = _network(network, num_classes).to(device)
    options: dict[str, Any] = {"momentum": momentum} if momentum else {}
    updates = getattr(torch.optim, optimizer)(model.parameters(), lr=0.001, **options)
    criterion = nn.CrossEntropyLoss()
    bound: dict[str, torch.Tensor] = {}

    def step() -> None:
        bound["images"] = torch.randn(batch_size, 3, image_size, image_size).to(device)
        bound["labels"] = torch.randint(num_classes, (batch_size,)).to(device)
        updates.zero_grad()
        bound["outputs"] = model(bound["images"])
        bound["loss"] = criterion(bound["outputs"], bound["labels"])
        bound["loss"].backward()
        updates.step()

    return step


def build_language_model(
    batch_size: int, device: torch.device, *, model: str = "gpt2", optimizer: str = "AdamW"
) -> Callable[[], None]:
    """Return one training step of a language model on sequences of 128 tokens, in single precision."""
    network = _language_model(model).to(device).train()
    updates = getattr(torch.optim, optimizer)(network.parameters(), lr=0.001)
    bound: dict[str, Any] = {}

    def step() -> None:
        tokens = torch.randint(1000, (batch_size, NUM_TOKENS))
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
        bound["batch"] = {name: value.to(device) for name, value in batch.items()}
        updates.zero_grad()
        bound["outputs"] = network(**bound["batch"])
        bound["loss"] = bound["outputs"].loss
        bound["loss"].backward()
        updates.step()

    return step
