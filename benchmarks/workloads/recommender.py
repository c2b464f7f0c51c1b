"""Recommender with many embedding tables, pairwise interactions and two perceptrons (DLRM)."""

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def make_mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Return linear layers of the given sizes with ReLU after each."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Recommender(nn.Module):
    """Dense features and bags of categories, combined by dot products."""

    def __init__(self, num_tables: int, rows: int, width: int, num_dense: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(num_tables))
        self.bottom = make_mlp((num_dense, hidden, hidden // 2, width))
        pairs = num_tables * (num_tables + 1) // 2
        self.top = nn.Sequential(make_mlp((pairs + width, hidden, hidden // 2)), nn.Linear(hidden // 2, 1))
        low = torch.tril_indices(num_tables + 1, num_tables + 1, offset=-1)
        self.register_buffer("rows", low[0])
        self.register_buffer("columns", low[1])

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        features = [x] + [table(bags[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.stack(features, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.rows, self.columns]], dim=1)).squeeze(1)


def build(
    batch_size: int,
    device: torch.device,
    *,
    num_tables: int = 16,
    rows: int = 100_000,
    width: int = 64,
    bag: int = 4,
    num_dense: int = 13,
    hidden: int = 512,
    optimizer: str = "Adagrad",
) -> Callable[[], float]:
    """Return one step with dense gradients of the tables, ``bag`` categories drawn from each."""
    model = Recommender(num_tables, rows, width, num_dense, hidden).to(device)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    dense = torch.randn(batch_size, num_dense, device=device)
    bags = torch.randint(rows, (batch_size, num_tables, bag), device=device)
    clicks = torch.rand(batch_size, device=device).round()

    def step() -> float:
        loss = F.binary_cross_entropy_with_logits(model(dense, bags), clicks)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss.item()

    return step
