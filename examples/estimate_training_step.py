"""The common case without a training loop: describe it as a `TrainingStep` and compare ways to train it.

python examples/estimate_training_step.py --gpu "RTX 3060"
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

import dnnmem_tune

WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "mixed precision": {"precision": "fp16"},
    "fused optimizer": {"fused": True},
    "checkpointing": {"checkpointing": True},
    "all of them": {"precision": "fp16", "fused": True, "checkpointing": True},
}


class Block(nn.Module):
    """A residual block of the encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, num_heads=8, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform; each is added to its input."""
        normalized = self.norm(x)
        x = x + self.attention(normalized, normalized, normalized, need_weights=False)[0]
        return x + self.mlp(x)  # type: ignore[no-any-return]


def encoder(width: int = 512, depth: int = 8) -> nn.Module:
    """Return the model; the names of its arguments are hyperparameters of the workload."""
    return nn.Sequential(nn.Linear(64, width), *(Block(width) for _ in range(depth)), nn.Linear(width, 64))


def windows(batch_size: int, seq_len: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one batch as the data loader does: time series, and what they are to become."""
    return torch.randn(batch_size, seq_len, 64), torch.randn(batch_size, seq_len, 64)


WORKLOAD = dnnmem_tune.TrainingStep(
    model=encoder,
    inputs=windows,
    loss="mse_loss",
    optimizer="adamw(lr=3e-4)",
    clip_grad_norm=1.0,
    checkpoint_blocks=("Block",),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="RTX 3060", help="the card that the job will run on")
    parser.add_argument("--smoke", action="store_true", help="small enough for a test")
    options = parser.parse_args()
    size: dict[str, Any] = {"width": 64, "depth": 1, "seq_len": 16} if options.smoke else {}
    ways = {"fp32": WAYS["fp32"]} if options.smoke else WAYS
    for name, way in ways.items():
        result = dnnmem_tune.max_batch_size(WORKLOAD, gpu=options.gpu, params={**size, **way})
        print(f"{name:>16}: largest batch {result.largest_batch} on {options.gpu}")


if __name__ == "__main__":
    main()
