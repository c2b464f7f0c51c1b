"""Small workloads, each for one thing that a recorder must get right."""

from __future__ import annotations

import torch
from torch import nn


def build(batch_size, device, which, **params):
    """The workload called ``which``: one reference, so that one worker serves all."""
    return globals()[which](batch_size, device, **params)


def mlp(batch_size, device, width=1024):
    """Two linear layers, Adam."""
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.randn(batch_size, 256)
    target = torch.zeros(batch_size, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.to(device)), target.to(device)).backward()
        optimizer.step()

    return step


def convolutional(batch_size, device, channels_last=False):
    """Convolutions that want a workspace, one of them grouped, one strided."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1, groups=4),
        nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    images = torch.randn(batch_size, 3, 32, 32).to(memory_format=layout)
    target = torch.zeros(batch_size, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), target.to(device)).backward()
        optimizer.step()

    return step


def half_precision(batch_size, device):
    """Autocast and a gradient scaler, whose test for infinities the host reads."""
    model = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    tokens = torch.randn(batch_size, 32, 64, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(tokens).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def recurrent(batch_size, device):
    """An LSTM of two layers through cuDNN."""
    with torch.device(device):
        model = nn.LSTM(64, 128, 2, dropout=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randn(20, batch_size, 64, device=device)

    def step():
        optimizer.zero_grad()
        model(tokens)[0].sum().backward()
        optimizer.step()

    return step


def branching(batch_size, device):
    """A branch that hangs on a value of the device."""
    weight = torch.ones(1024, device=device, requires_grad=True)

    def step():
        loss = (weight * batch_size).sum()
        print("loss", loss.item())
        if loss > 0:
            loss = loss + (weight * weight).sum()
        loss.backward()

    return step


def hungry(batch_size, device):
    """A gibibyte for each sample."""
    return lambda: torch.empty(batch_size, 1 << 30, dtype=torch.uint8, device=device)


def enormous(batch_size, device):
    """Ten gigabytes of weights, built on the CPU as most programs do."""
    model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False) for _ in range(10)]).to(device)

    def step():
        model(torch.randn(batch_size, 16384, device=device)).sum().backward()

    return step


def raising(batch_size, device):
    """Raises in its first step."""

    def step():
        raise ValueError("the labels are missing")

    return step


def wrong(batch_size, device):
    """Returns no function."""
    return batch_size


class _Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 64)
        self.decoder = nn.Linear(64, 64)

    def forward(self, x):
        return self.decoder(self.encoder(x).relu())


def named(batch_size, device):
    """A model whose layers have names, frozen in part."""
    model = _Network().to(device)
    model.encoder.weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    x = torch.randn(batch_size, 64, device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
