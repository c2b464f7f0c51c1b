"""Import beforehand what a training step imports, so that forked children need not.

A step pulls in modules late (the optimizers import PyTorch's compiler, for seconds). A child
runs a small one, and the worker then imports what the child had to; the worker itself must not
touch the card.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys


def warm_up() -> None:
    """Import the modules of a typical training step and of the profiler."""
    reader, writer = os.pipe()
    before = set(sys.modules)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(Exception):
            _train()
        with os.fdopen(writer, "w") as stream:
            json.dump(sorted(set(sys.modules) - before), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    for name in json.loads(text or "[]"):
        # Some only import in their own circumstances.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _train() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 8)).cuda()
    scaler = torch.amp.GradScaler("cuda")
    target = torch.zeros(2, dtype=torch.long, device="cuda")
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    profiler.start()
    for optimizer in (torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(torch.zeros(2, 8, device="cuda")), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    profiler.stop()
