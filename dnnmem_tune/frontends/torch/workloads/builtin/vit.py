"""Vision Transformer, base size, patches of 16 pixels: 86,567,656 parameters.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020; layout and counts as
``torchvision.models.vit_b_16``.
"""

from __future__ import annotations

import torch
from torch import nn

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.torch.workloads.builtin.batches import images_and_classes
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

_NORM_EPSILON = 1e-6


class EncoderBlock(nn.Module):
    """Attention and a feed-forward network, each normalised before and added to its input."""

    def __init__(self, hidden_size: int, num_heads: int, mlp_size: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)
        self.self_attention = nn.MultiheadAttention(hidden_size, num_heads, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, mlp_size), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(mlp_size, hidden_size), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalized = self.ln_1(x)
        attended, _ = self.self_attention(normalized, normalized, normalized, need_weights=False)
        x = self.dropout(attended) + x
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token, encoder blocks, and a linear classifier."""

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        hidden_size: int,
        depth: int,
        num_heads: int,
        mlp_size: int,
        in_channels: int,
        num_classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(in_channels, hidden_size, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden_size))
        self.pos_embedding = nn.Parameter(torch.empty(1, (image_size // patch_size) ** 2 + 1, hidden_size))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(
            *(EncoderBlock(hidden_size, num_heads, mlp_size, dropout) for _ in range(depth))
        )
        self.ln = nn.LayerNorm(hidden_size, eps=_NORM_EPSILON)
        self.head = nn.Linear(hidden_size, num_classes)
        nn.init.normal_(self.pos_embedding, std=0.02)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.size(0), -1, -1), x], dim=1)
        x = self.ln(self.layers(self.dropout(x + self.pos_embedding)))
        logits: torch.Tensor = self.head(x[:, 0])
        return logits


def vit(
    image_size: int = 224,
    patch_size: int = 16,
    hidden_size: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    mlp_size: int = 3072,
    in_channels: int = 3,
    num_classes: int = 1000,
    dropout: float = 0.0,
) -> VisionTransformer:
    """Return the network; ``hidden_size=1024, depth=24, num_heads=16, mlp_size=4096`` is ViT-Large.

    Raises:
        UsageError: If the image is not a whole number of patches.

    """
    if image_size % patch_size:
        raise UsageError(f"vit: image_size={image_size} is not a multiple of patch_size={patch_size}")
    return VisionTransformer(
        image_size, patch_size, hidden_size, depth, num_heads, mlp_size, in_channels, num_classes, dropout
    )


VIT_B_16 = TrainingStep(
    model=vit,
    inputs=images_and_classes,
    loss="cross_entropy",
    optimizer="adamw(lr=3e-3, weight_decay=0.3)",
    clip_grad_norm=1.0,
    checkpoint_blocks=("EncoderBlock",),
)
