"""What real training code does besides training; run only inside a worker process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Step = Callable[[], object]


def build(batch_size: int, device: torch.device, habit: str) -> Step:
    """Return the step of one habit."""
    step: Step = HABITS[habit](batch_size, device)
    return step


def _net(device: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)


class _Loop:
    """The loop that every habit is added to."""

    def __init__(self, batch_size: int, device: torch.device, model: nn.Module | None = None) -> None:
        self.batch_size = batch_size
        self.device = device
        self.model = model if model is not None else _net(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def __call__(self) -> torch.Tensor:
        return self.train(torch.randn(self.batch_size, 16).to(self.device))

    def train(self, inputs: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        outputs: torch.Tensor = self.model(inputs)
        loss = outputs.pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss


def plain(batch_size: int, device: torch.device) -> Step:
    """Nothing besides."""
    return _Loop(batch_size, device)


def data_loader(batch_size: int, device: torch.device) -> Step:
    """Workers and pinned memory."""
    data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    loader = torch.utils.data.DataLoader(
        data, batch_size, shuffle=True, num_workers=2, pin_memory=True, drop_last=True, persistent_workers=True
    )
    loop = _Loop(batch_size, device)
    batches = iter(loader)
    return lambda: loop.train(next(batches)[0].to(device, non_blocking=True))


def side_stream(batch_size: int, device: torch.device) -> Step:
    """A prefetching stream."""
    loop = _Loop(batch_size, device)
    stream: Any = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(stream):
            inputs = torch.randn(batch_size, 16, device=device)
        torch.cuda.current_stream().wait_stream(stream)
        inputs.record_stream(stream)
        loop.train(inputs)

    return step


def timing(batch_size: int, device: torch.device) -> Step:
    """Events, and the statistics of the allocator."""
    loop = _Loop(batch_size, device)

    def step() -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        loop()
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) > 0
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] >= 0
        assert torch.cuda.max_memory_allocated() >= 0

    return step


def data_parallel(batch_size: int, device: torch.device) -> Step:
    """The wrapper of scripts that count the devices first."""
    return _Loop(batch_size, device, nn.DataParallel(_net(device)))


def cuda_methods(batch_size: int, _device: torch.device) -> Step:
    """Code that never heard of a device argument."""
    assert torch.cuda.is_available()
    loop = _Loop(batch_size, torch.device("cuda"), nn.Linear(16, 4).cuda())
    return lambda: loop.train(torch.randn(batch_size, 16).cuda())


def moving_average(batch_size: int, device: torch.device) -> Step:
    """A copy of the weights."""
    loop = _Loop(batch_size, device)
    average = copy.deepcopy(loop.model)

    def step() -> None:
        loop()
        with torch.no_grad():
            for kept, current in zip(average.parameters(), loop.model.parameters(), strict=True):
                kept.mul_(0.9).add_(current, alpha=0.1)

    return step


def reads_values(batch_size: int, device: torch.device) -> Step:
    """Metrics on the host, and batches from numpy."""
    loop = _Loop(batch_size, device)
    data = np.random.default_rng(0).random((512, 16), dtype=np.float32)

    def step() -> None:
        loss = loop.train(torch.from_numpy(data[:batch_size]).to(device))
        float(loss)
        loss.detach().cpu().numpy()
        predictions = loop.model(torch.randn(batch_size, 16, device=device)).argmax(1).cpu().tolist()
        assert len(predictions) == batch_size

    return step


def data_dependent(batch_size: int, device: torch.device) -> Step:
    """Masks, unique values and histograms."""
    loop = _Loop(batch_size, device)

    def step() -> None:
        outputs = loop.model(torch.randn(batch_size, 16, device=device))
        loop.optimizer.zero_grad()
        outputs[outputs > 0].sum().backward()
        loop.optimizer.step()
        labels = outputs.argmax(1)
        outputs[labels > 0]
        torch.unique(labels)
        torch.bincount(labels, minlength=4)
        torch.masked_select(outputs, outputs > 0)
        outputs[outputs < 0] = 0.0

    return step


def sizes_from_values(batch_size: int, device: torch.device) -> Step:
    """Widths and rates computed with small CPU tensors, as RegNet and stochastic depth do."""
    widths = (torch.arange(4) * 24.0 + 24).round().int().tolist()
    assert widths == [24, 48, 72, 96]
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
    assert abs(rates[3] - 0.1) < 1e-6
    assert bool(torch.ones(batch_size, 4, dtype=torch.long, device=device).all())
    positions = torch.arange(2048, device=device).repeat(64, 1)
    assert bool((positions.diff(dim=1) == 1).all())  # as decoders ask whether sequences are packed
    layers = [module for width in widths for module in (nn.Linear(16, width), nn.Linear(width, 16))]
    return _Loop(batch_size, device, nn.Sequential(*layers).to(device))


def old_amp(batch_size: int, device: torch.device) -> Step:
    """``torch.cuda.amp`` with a scaler and clipping."""
    loop = _Loop(batch_size, device)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        loop.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loop.model(torch.randn(batch_size, 16, device=device)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        scaler.step(loop.optimizer)
        scaler.update()

    return step


def closure(batch_size: int, device: torch.device) -> Step:
    """LBFGS."""
    model = _net(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    inputs = torch.randn(batch_size, 16, device=device)

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(inputs).pow(2).mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(evaluate)  # type: ignore[arg-type]


def ctc(batch_size: int, device: torch.device) -> Step:
    """A loss whose sizes are in lengths on the host."""
    model = nn.Linear(16, 20).to(device)
    lengths = torch.full((batch_size,), 50), torch.full((batch_size,), 10)

    def step() -> None:
        scores = model(torch.randn(50, batch_size, 16, device=device)).log_softmax(-1)
        targets = torch.randint(1, 20, (batch_size, 10), device=device)
        nn.functional.ctc_loss(scores, targets, *lengths).backward()

    return step


def sparse_gradients(batch_size: int, device: torch.device) -> Step:
    """An embedding whose gradient is sparse."""
    model = nn.Embedding(1000, 16, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randint(0, 1000, (batch_size, 8)).to(device)).sum().backward()
        optimizer.step()

    return step


def saves_a_file(batch_size: int, device: torch.device) -> Step:
    """A checkpoint of a real run must not be written over."""
    loop = _Loop(batch_size, device)

    def step() -> None:
        loop()
        torch.save(loop.model.state_dict(), __file__)

    return step


def double_backward(batch_size: int, device: torch.device) -> Step:
    """A gradient penalty."""
    loop = _Loop(batch_size, device)

    def step() -> None:
        inputs = torch.randn(batch_size, 16, device=device, requires_grad=True)
        score = loop.model(inputs).sum()
        (gradient,) = torch.autograd.grad(score, inputs, create_graph=True)
        loop.optimizer.zero_grad()
        (score + gradient.norm()).backward()
        loop.optimizer.step()

    return step


def keeps_gradients(batch_size: int, device: torch.device) -> Step:
    """Gradients asked for by name, whose names stay bound until the next step rebinds them."""
    model = _net(device)
    kept: dict[str, Any] = {}

    def step() -> None:
        loss = model(torch.randn(batch_size, 16, device=device)).sum()
        kept["gradients"] = torch.autograd.grad(loss, list(model.parameters()))

    return step


def without_a_shape_rule(batch_size: int, device: torch.device) -> Step:
    """An operator that torch has no shape rule for."""
    loop = _Loop(batch_size, device)

    def step() -> None:
        loop()
        torch.geqrf(torch.randn(batch_size, batch_size, device=device))

    return step


def custom_operator(batch_size: int, device: torch.device) -> Step:
    """An extension that says nothing of shapes."""
    torch.library.define("extension::double", "(Tensor x) -> Tensor")
    loop = _Loop(batch_size, device)

    def step() -> None:
        loop()
        torch.ops.extension.double(torch.randn(batch_size, device=device))

    return step


def least_squares(batch_size: int, device: torch.device) -> Step:
    """An operator whose results depend on values."""
    loop = _Loop(batch_size, device)

    def step() -> None:
        loop()
        torch.linalg.lstsq(torch.randn(batch_size, 3, device=device), torch.randn(batch_size, 2, device=device))

    return step


def looks_for_compiled(batch_size: int, device: torch.device) -> Step:
    """What wrappers ask of a model before they unwrap it."""
    from torch._dynamo.eval_frame import OptimizedModule

    loop = _Loop(batch_size, device)
    assert not isinstance(loop.model, OptimizedModule)
    assert OptimizedModule is torch._dynamo.OptimizedModule
    return loop


def graph_capture(batch_size: int, device: torch.device) -> Step:
    """CUDA graphs."""
    torch.cuda.CUDAGraph()
    return _Loop(batch_size, device)


def distributed(batch_size: int, device: torch.device) -> Step:
    """A process group."""
    torch.distributed.init_process_group("nccl")
    return _Loop(batch_size, device)


def lazy_layers(batch_size: int, device: torch.device) -> Step:
    """Layers that learn their size from the first batch."""
    return _Loop(batch_size, device, nn.Sequential(nn.LazyLinear(8)).to(device))


HABITS: dict[str, Callable[[int, torch.device], Step]] = {
    function.__name__: function
    for function in (
        plain, data_loader, side_stream, timing, data_parallel, cuda_methods, moving_average, reads_values,
        data_dependent, sizes_from_values, old_amp, closure, ctc, sparse_gradients, saves_a_file, double_backward,
        keeps_gradients, without_a_shape_rule, custom_operator, least_squares, looks_for_compiled,
        graph_capture, distributed, lazy_layers,
    )
}  # fmt: skip
