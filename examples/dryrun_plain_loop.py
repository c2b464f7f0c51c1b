"""A plain PyTorch loop: an image classifier with mixed precision.

dnnmem dryrun --gpu RTX3090 -- python examples/dryrun_plain_loop.py --batch-size 64
dnnmem dryrun --gpu RTX3090 --find batch_size=--batch-size -- python examples/dryrun_plain_loop.py
"""

import argparse

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader


class RandomImages(torch.utils.data.Dataset):
    """Stands for a folder of images."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.zeros(3, 224, 224), index % 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torchvision.models.resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(
        RandomImages(), batch_size=arguments.batch_size, num_workers=arguments.workers, pin_memory=True
    )
    for number, (images, labels) in enumerate(loader):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if number % 10 == 0:
            print(f"step {number}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
