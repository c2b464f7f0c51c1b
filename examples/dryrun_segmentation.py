"""torchvision: a DeepLabV3 for segmentation, with an auxiliary loss.

dnnmem dryrun --gpu V100-16GB -- python examples/dryrun_segmentation.py -b 8
"""

import argparse

import torch
import torchvision
from torch import nn


def criterion(outputs, target):
    losses = {name: nn.functional.cross_entropy(x, target, ignore_index=255) for name, x in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--crop", type=int, default=480)
    arguments = parser.parse_args()

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21, aux_loss=True
    )
    model.cuda().train()
    groups = [
        {"params": [p for p in model.backbone.parameters() if p.requires_grad]},
        {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
        {"params": [p for p in model.aux_classifier.parameters() if p.requires_grad], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=1e-4)
    image = torch.zeros(arguments.batch_size, 3, arguments.crop, arguments.crop)
    target = torch.zeros(arguments.batch_size, arguments.crop, arguments.crop, dtype=torch.long)
    for _ in range(1000):
        image, target = image.cuda(), target.cuda()
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
