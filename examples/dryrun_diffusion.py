"""Diffusers: one denoising step of an unconditional U-Net, with an average of the weights.

dnnmem dryrun --gpu A100-40GB -- python examples/dryrun_diffusion.py --train_batch_size 16
"""

import argparse

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--resolution", type=int, default=64)
    arguments = parser.parse_args()

    model = UNet2DModel(
        sample_size=arguments.resolution,
        block_out_channels=(128, 128, 256, 256),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    ).to("cuda")
    average = EMAModel(model.parameters())
    scheduler = DDPMScheduler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1000):
        clean = torch.randn(
            arguments.train_batch_size, 3, arguments.resolution, arguments.resolution, device="cuda"
        )
        noise = torch.randn_like(clean)
        times = torch.randint(0, 1000, (len(clean),), device="cuda")
        predicted = model(scheduler.add_noise(clean, noise, times), times).sample
        loss = torch.nn.functional.mse_loss(predicted, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        print(f"step {step}: {loss.detach().item():.4f}")


if __name__ == "__main__":
    main()
