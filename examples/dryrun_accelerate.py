"""Accelerate: a ViT with gradient accumulation.

dnnmem dryrun --gpu L4 -- python examples/dryrun_accelerate.py --batch-size 32
dnnmem dryrun --gpu L4 -- accelerate launch --num_processes 1 --mixed_precision bf16 examples/dryrun_accelerate.py
"""

import argparse

import torch
from accelerate import Accelerator
from transformers import ViTConfig, ViTForImageClassification


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2)
    arguments = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=arguments.accumulate)
    model = ViTForImageClassification(ViTConfig(num_labels=1000))
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.utils.data.TensorDataset(torch.zeros(4096, 3, 224, 224, dtype=torch.uint8))
    loader = torch.utils.data.DataLoader(images, batch_size=arguments.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        with accelerator.accumulate(model):
            labels = torch.zeros(len(batch), dtype=torch.long, device=accelerator.device)
            loss = model(pixel_values=batch.float() / 255, labels=labels).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
