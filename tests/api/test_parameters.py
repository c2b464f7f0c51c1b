"""What a workload takes is read from its text or signature; nothing of it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnmem_tune import TrainingStep
from dnnmem_tune.api.parameters import accepted_parameters


@pytest.mark.parametrize("reference", ["resnet50", "hf:config.json", "timm:resnet18", "torchvision:resnet18"])
def test_models_take_the_options_of_a_training_step(reference: str) -> None:
    """Precision, checkpointing and accumulation among them."""
    assert {"precision", "checkpointing", "accumulation", "optimizer"} <= accepted_parameters(reference)


def test_file_is_read_and_not_run(tmp_path: Path) -> None:
    """GIVEN a file that would raise when imported THEN the arguments of its function are known."""
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit\ndef build(batch_size, device, width=4, *, precision='fp32'): ...\n")

    assert accepted_parameters(f"{path}:build") == {"batch_size", "device", "width", "precision"}
    assert accepted_parameters(f"{path}:other") == frozenset()


@pytest.mark.parametrize("reference", ["missing.py:build", "package.module:build", "no such thing"])
def test_what_cannot_be_read_takes_nothing_that_is_known(reference: str) -> None:
    """No advice is better than advice that fails."""
    assert accepted_parameters(reference) == frozenset()


def test_broken_file_takes_nothing_that_is_known(tmp_path: Path) -> None:
    """Its error comes where it is traced."""
    (tmp_path / "train.py").write_text("def build(:\n")

    assert accepted_parameters(f"{tmp_path / 'train.py'}:build") == frozenset()


def test_functions_and_training_steps_are_asked_themselves() -> None:
    """By signature and by fields."""

    def build(batch_size: int, device: str, *, width: int = 4) -> None: ...

    step = TrainingStep(model=lambda: None, inputs=lambda batch_size: None)

    assert accepted_parameters(build) == {"batch_size", "device", "width"}
    assert "foreach" in accepted_parameters(step)
