"""Image classifiers that timm and torchvision make by name, where one of them is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

from dnnmem_tune.errors import MissingPackageError, WorkloadError
from dnnmem_tune.frontends.torch.workloads.builtin.batches import images_and_classes
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep, near

_AUXILIARY_WEIGHT = 0.4
"""Weight of each auxiliary classifier, as in torchvision's tutorial for Inception v3."""

_OPTIMIZER = "sgd(lr=0.1, momentum=0.9, weight_decay=1e-4)"


def load_zoo_model(package: str, name: str) -> TrainingStep:
    """Return the workload that trains the classifier ``name`` of ``package`` from scratch.

    Args:
        package: ``timm`` or ``torchvision``.
        name: As its ``list_models()`` gives it.

    Raises:
        MissingPackageError: If the package is not installed.
        WorkloadError: If it cannot be imported, or has no classifier of that name.

    """
    module = _import(package, "torchvision.models" if package == "torchvision" else "timm")
    names = module.list_models() if package == "timm" else module.list_models(module=module)
    if name not in names:
        raise WorkloadError(f"{package} has no image classifier {name!r}{near(name, names)}")
    if package == "timm":
        _, size, _ = module.get_pretrained_cfg(name).input_size
        return _step(partial(_timm_model, name), _sized(size))
    builder = module.get_model_builder(name)
    return _step(partial(_torchvision_model, name), _sized(299 if builder.__name__ == "inception_v3" else 224))


def loss(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy; the auxiliary classifiers of GoogLeNet and Inception count at 0.4 each."""
    if isinstance(outputs, torch.Tensor):
        return functional.cross_entropy(outputs, targets)
    main, *auxiliary = (functional.cross_entropy(logits, targets) for logits in outputs if logits is not None)
    return main + _AUXILIARY_WEIGHT * sum(auxiliary)


def _step(model: Callable[..., Any], batch: Callable[..., Any]) -> TrainingStep:
    return TrainingStep(model=model, inputs=batch, loss=loss, optimizer=_OPTIMIZER)


def _timm_model(name: str, *, num_classes: int = 1000, image_size: int = 0, drop_rate: float = 0.0) -> Any:
    timm: Any = importlib.import_module("timm")
    # Networks with learned positions are built for one size; the others neither need nor take it.
    fixed = image_size and timm.get_pretrained_cfg(name).fixed_input_size
    sized = {"img_size": image_size} if fixed else {}
    return timm.create_model(name, pretrained=False, num_classes=num_classes, drop_rate=drop_rate, **sized)


def _torchvision_model(name: str, *, num_classes: int = 1000, image_size: int = 0) -> Any:
    models = importlib.import_module("torchvision.models")
    builder = models.get_model_builder(name)
    options: dict[str, Any] = {"init_weights": True} if name in ("inception_v3", "googlenet") else {}
    if image_size and name.startswith("vit_"):
        options["image_size"] = image_size
    return builder(weights=None, num_classes=num_classes, **options)


def _sized(size: int) -> Callable[..., Any]:
    """``images_and_classes`` with another default size, shown in its signature."""

    def batch(
        batch_size: int, image_size: int = size, num_classes: int = 1000
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return images_and_classes(batch_size, image_size, num_classes=num_classes)

    return batch


def _import(package: str, module: str) -> ModuleType:
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise WorkloadError(f"{package} cannot be imported: {error}") from error
        raise MissingPackageError(
            f"{package}: needs the package {package!r}, which is not installed; run pip install {package}"
        ) from error
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise WorkloadError(f"{package} cannot be imported: {type(error).__name__}: {reason}") from error
