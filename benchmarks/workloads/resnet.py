"""ResNet with basic or bottleneck blocks, written as a script's loop: its names stay bound between steps."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Residual(nn.Module):
    """Two or three convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool, groups: int) -> None:
        super().__init__()
        out = width * 4 if bottleneck else width
        inner = width * 2 if groups > 1 else width
        if bottleneck:
            convs = [(channels, inner, 1, 1, 1), (inner, inner, 3, stride, groups), (inner, out, 1, 1, 1)]
        else:
            convs = [(channels, width, 3, stride, 1), (width, out, 3, 1, 1)]
        layers: list[nn.Module] = []
        for before, after, size, step, group in convs:
            layers += [
                nn.Conv2d(before, after, size, step, padding=size // 2, groups=group, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels == out
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def make_resnet(depth: int, num_classes: int, groups: int = 1) -> nn.Sequential:
    """Return a ResNet, or with ``groups`` above 1 a ResNeXt, of the given number of layers."""
    bottleneck = depth >= 50
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for stage, num_blocks in enumerate(DEPTHS[depth]):
        width = 64 << stage
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Residual(channels, width, stride, bottleneck, groups))
            channels = width * 4 if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def build(
    batch_size: int,
    device: torch.device,
    *,
    depth: int = 50,
    groups: int = 1,
    image_size: int = 224,
    num_classes: int = 1000,
    channels_last: bool = False,
    amp: str | None = None,
    set_to_none: bool = True,
    fresh_batches: bool = False,
) -> Callable[[], object]:
    """Return one step of SGD with momentum.

    Options:
        amp: ``float16`` (with a gradient scaler), ``bfloat16``, or ``None`` for float32.
        fresh_batches: Copy every batch from the host, as a loop over a data loader does.

    """
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = make_resnet(depth, num_classes, groups).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=amp == "float16")
    source = torch.device("cpu") if fresh_batches else device
    batch_images = torch.randn(batch_size, 3, image_size, image_size, device=source).to(memory_format=layout)
    batch_labels = torch.randint(num_classes, (batch_size,), device=source)

    def loop() -> Iterator[None]:
        while True:
            images = batch_images.to(device)
            labels = batch_labels.to(device)
            with torch.autocast(device.type, dtype=getattr(torch, amp or "float16"), enabled=amp is not None):
                outputs = model(images)
                loss = F.cross_entropy(outputs, labels)
            optimizer.zero_grad(set_to_none=set_to_none)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield

    return partial(next, loop())
