"""A plain loop, as a user writes it."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--trouble", default="")
parser.add_argument("--device", default="cuda")
arguments = parser.parse_args()


def trouble(where: str) -> None:
    """Do what the test asks for, at the place it asks for."""
    import os
    import sys
    import time

    match arguments.trouble:
        case "raise" if where == "step":
            raise ValueError("the labels are missing")
        case "print" if where == "start":
            print("x" * 10_000_000)
            for number in range(20_000):
                print("line", number)
        case "fork" if where == "step":
            if os.fork() == 0:
                time.sleep(600)
        case "stdin" if where == "start":
            print("read", repr(sys.stdin.read()))
        case "hang" if where == "start":
            print("waiting for the data", flush=True)
            time.sleep(600)
        case "exit" if where == "start":
            sys.exit(3)
        case "memory" if where == "start":
            keep = bytearray(3 << 30)
            for offset in range(0, len(keep), 4096):
                keep[offset] = 1
            time.sleep(60)


trouble("start")
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).to(arguments.device)
optimizer = torch.optim.Adam(model.parameters())
loader = torch.utils.data.DataLoader(torch.zeros(8 * arguments.batch_size, 1024), batch_size=arguments.batch_size)
for batch in loader:
    batch = batch.to(arguments.device)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    trouble("step")
    optimizer.step()
    print("loss", loss.item())
