"""A training script that asks, before it trains, whether it fits and how large its batch may be.

The script's own training step is what is estimated: `build` makes it, and the same function trains on a GPU.

    python examples/estimate_script.py --gpu V100-16GB
    dnnmem-maxbatch --workload examples/estimate_script.py:build --gpu V100-16GB --set width=96
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dnnmem_tune
from dnnmem_tune.units import format_bytes


def build(batch_size: int, device: Any, width: int = 64, image_size: int = 128) -> Callable[[], float]:
    """Make the model, the optimizer and the data, and return one training step."""
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = [(torch.randn(batch_size, 3, image_size, image_size), torch.randint(0, 10, (batch_size,)))]

    def step() -> float:
        for images, classes in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), classes.to(device))
            loss.backward()
            optimizer.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="V100-16GB", help="the card that the job will run on")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--smoke", action="store_true", help="small enough for a test")
    options = parser.parse_args()
    params = {"width": 8, "image_size": 32} if options.smoke else {"width": options.width}

    estimate = dnnmem_tune.estimate(build, batch_size=options.batch_size, gpu=options.gpu, params=params)
    answer = {True: "fits", False: "does not fit", None: "may or may not fit"}[estimate.fits]
    print(f"batch {options.batch_size} {answer}: {format_bytes(estimate.peak_device_bytes)} on {options.gpu}")

    if not options.smoke:
        result = dnnmem_tune.max_batch_size(build, gpu=options.gpu, params=params)
        print(f"largest batch {result.largest_batch}: {result.reason}")

    if torch.cuda.is_available() and estimate.fits:
        print(f"loss {build(options.batch_size, 'cuda', **params)():.3f}")


if __name__ == "__main__":
    main()
