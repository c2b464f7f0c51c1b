"""Classifiers of timm and torchvision, tested on stand-ins that have the two packages' interface."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from dnnmem_tune.errors import MissingPackageError, WorkloadError
from dnnmem_tune.frontends.torch.workloads.resolve import load_build
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep
from dnnmem_tune.frontends.torch.workloads.zoo import loss

TORCHVISION = """
from torch import nn
class WithAuxiliary(nn.Module):
    def __init__(self, num_classes, init_weights=None):
        super().__init__()
        self.main, self.auxiliary = nn.LazyLinear(num_classes), nn.LazyLinear(num_classes)
        assert init_weights
    def forward(self, x):
        x = x.mean((2, 3))
        return self.main(x), self.auxiliary(x)
def resnet18(*, weights=None, num_classes=1000):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))
def inception_v3(*, weights=None, num_classes=1000, init_weights=None):
    return WithAuxiliary(num_classes, init_weights)
def vit_b_16(*, weights=None, num_classes=1000, image_size=224):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size ** 2, num_classes))
def list_models(module=None): return ["inception_v3", "resnet18", "vit_b_16"]
def get_model_builder(name): return globals()[name]
"""
TIMM = """
from types import SimpleNamespace
from torch import nn
def list_models(): return ["resnet18", "vit_tiny"]
def get_pretrained_cfg(name):
    return SimpleNamespace(input_size=(3, 64, 64), fixed_input_size=name.startswith("vit"))
def create_model(name, pretrained, num_classes, drop_rate, img_size=None):
    features = 3 * img_size ** 2 if img_size else 3
    pool = nn.Identity() if img_size else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(pool, nn.Flatten(), nn.Dropout(drop_rate), nn.Linear(features, num_classes))
"""


@pytest.fixture
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("")
    (tmp_path / "torchvision" / "models.py").write_text(TORCHVISION)
    (tmp_path / "timm.py").write_text(TIMM)
    _forget(monkeypatch, tmp_path)


def _forget(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.syspath_prepend(path)
    for name in ("torchvision", "torchvision.models", "timm"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize(
    ("reference", "image_size"),
    [
        ("torchvision:resnet18", 224),
        ("torchvision:vit_b_16", 224),
        ("torchvision:inception_v3", 299),
        ("timm:resnet18", 64),
        ("timm:vit_tiny", 64),
    ],
)
def test_a_classifier_trains_at_its_own_and_at_another_image_size(reference: str, image_size: int) -> None:
    """Networks with learned positions are built for the size that the images have."""
    workload = load_build(reference)
    assert isinstance(workload, TrainingStep)
    assert workload.hyperparameters["image_size"] == image_size
    if "inception" not in reference:  # its stand-in is lazy, and has no weights before the first images
        workload(2, "cpu", num_classes=3)()
        workload(2, "cpu", image_size=32, num_classes=3)()


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_an_unknown_model_gets_its_near_matches(package: str) -> None:
    """From the package's own list."""
    with pytest.raises(WorkloadError) as caught:
        load_build(f"{package}:resnet81")
    assert str(caught.value) == f"{package} has no image classifier 'resnet81' (did you mean resnet18?)"


def test_auxiliary_classifiers_count_at_four_tenths() -> None:
    """By hand: equal logits over two classes give ln 2 each."""
    logits, targets = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    assert loss(logits, targets).item() == pytest.approx(0.693147)
    assert loss((logits, logits, logits), targets).item() == pytest.approx(1.8 * 0.693147)
    assert loss((logits, None), targets).item() == pytest.approx(0.693147)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_missing_package_names_itself(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to install it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError) as caught:
        load_build(f"{package}:resnet50")
    assert str(caught.value) == (
        f"{package}: needs the package '{package}', which is not installed; run pip install {package}"
    )


def test_a_broken_package_gives_its_own_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision of one build beside torch of another."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    _forget(monkeypatch, tmp_path)
    with pytest.raises(WorkloadError) as caught:
        load_build("torchvision:resnet50")
    assert str(caught.value) == (
        "torchvision cannot be imported: RuntimeError: operator torchvision::nms does not exist"
    )
