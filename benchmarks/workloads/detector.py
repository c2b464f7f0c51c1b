"""One-stage detector: feature pyramid, shared heads, focal and smooth L1 losses, hard examples by top-k."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def conv(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    """Return a 3 x 3 convolution with group normalisation and ReLU."""
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1), nn.GroupNorm(16, out), nn.ReLU(inplace=True))


class Detector(nn.Module):
    """Backbone of five strides, top-down pyramid over the last three, two heads."""

    def __init__(self, base: int, width: int, num_anchors: int, num_classes: int) -> None:
        super().__init__()
        widths = [base << level for level in range(5)]
        ins = [3, *widths[:-1]]
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 2), conv(b, b)) for a, b in zip(ins, widths, strict=True)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(channels, width, 1) for channels in widths[2:])
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in widths[2:])
        self.scores = nn.Sequential(*(conv(width, width) for _ in range(4)))
        self.scores.append(nn.Conv2d(width, num_anchors * num_classes, 3, padding=1))
        self.boxes = nn.Sequential(*(conv(width, width) for _ in range(4)))
        self.boxes.append(nn.Conv2d(width, num_anchors * 4, 3, padding=1))
        self.num_classes = num_classes

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = []
        x = images
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        maps = [lateral(f) for lateral, f in zip(self.lateral, features[2:], strict=True)]
        for level in (1, 0):
            maps[level] = maps[level] + F.interpolate(maps[level + 1], scale_factor=2.0, mode="nearest")
        maps = [smooth(m) for smooth, m in zip(self.smooth, maps, strict=True)]
        scores = [self.scores(m).permute(0, 2, 3, 1).reshape(len(m), -1, self.num_classes) for m in maps]
        boxes = [self.boxes(m).permute(0, 2, 3, 1).reshape(len(m), -1, 4) for m in maps]
        return torch.cat(scores, dim=1), torch.cat(boxes, dim=1)


def build(
    batch_size: int,
    device: torch.device,
    *,
    base: int = 32,
    width: int = 256,
    num_anchors: int = 9,
    num_classes: int = 80,
    image_size: int = 512,
    hard_examples: int = 0,
    max_norm: float = 10.0,
) -> Callable[[], float]:
    """Return one SGD step; with ``hard_examples`` only that many highest losses of each image count."""
    model = Detector(base, width, num_anchors, num_classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    num_boxes = num_anchors * sum((image_size >> stride) ** 2 for stride in (3, 4, 5))
    classes = torch.randint(num_classes, (batch_size, num_boxes), device=device)
    positive = torch.rand(batch_size, num_boxes, device=device) < 0.01
    boxes = torch.randn(batch_size, num_boxes, 4, device=device)

    def step() -> float:
        optimizer.zero_grad()
        scores, offsets = model(images)
        truth = F.one_hot(classes, num_classes).to(scores.dtype) * positive.unsqueeze(-1)
        loss = F.binary_cross_entropy_with_logits(scores, truth, reduction="none")
        probability = torch.sigmoid(scores)
        agreement = probability * truth + (1 - probability) * (1 - truth)
        loss = (loss * (1 - agreement) ** 2).sum(dim=-1)
        if hard_examples:
            loss = loss.topk(hard_examples, dim=1).values
        distance = F.smooth_l1_loss(offsets, boxes, reduction="none").sum(dim=-1)
        total = loss.mean() + torch.where(positive, distance, torch.zeros_like(distance)).mean()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return total.item()

    return step
