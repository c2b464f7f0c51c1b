"""The fingerprint follows the source that a workload consists of, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads.by_value import reference_of
from dnnmem_tune.frontends.torch.workloads.fingerprint import local_sources, workload_fingerprint
from dnnmem_tune.frontends.torch.workloads.resolve import load_build

FILES = {
    "train.py": "import layers_of_it\nfrom parts_of_it import blocks\ndef build(batch_size, device): ...\n",
    "layers_of_it.py": "def f():\n    from deep_of_it import x\n",
    "deep_of_it.py": "x = 1\n",
    "parts_of_it/__init__.py": "",
    "parts_of_it/blocks.py": "from . import sizes\nfrom .. import outside\n",
    "parts_of_it/sizes.py": "import json\n",
    "parts_of_it/unused.py": "",
    "unrelated.py": "",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return tmp_path


def test_sources_are_those_that_an_import_would_reach(project: Path) -> None:
    """Directly, through others, inside functions and relatively; installed modules are not."""
    assert {str(path.relative_to(project)) for path in local_sources(Path("train.py"))} == {
        "train.py", "layers_of_it.py", "deep_of_it.py", "parts_of_it/__init__.py", "parts_of_it/blocks.py",
        "parts_of_it/sizes.py",
    }  # fmt: skip


@pytest.mark.parametrize("reference", ["train.py:build", "train:build"])
@pytest.mark.parametrize(
    ("edited", "changes"),
    [(name, "unused" not in name and "unrelated" not in name) for name in FILES],
)
def test_an_edit_changes_it_if_and_only_if_it_matters(reference: str, edited: str, changes: bool) -> None:
    """Even a comment does: to know better is not worth a stale answer."""
    before = workload_fingerprint(reference)
    assert workload_fingerprint(reference) == before
    Path(edited).write_text(FILES[edited] + "# edited\n")
    assert (workload_fingerprint(reference) != before) is changes


def test_the_function_and_the_kind_of_reference_count() -> None:
    """Two functions of one file are two workloads."""
    references = ["train.py:build", "train.py:other", "resnet50", "vgg16", "timm:resnet50", "torchvision:resnet50"]
    assert len({workload_fingerprint(reference) for reference in references}) == len(references)


def test_a_missing_file_or_a_syntax_error_is_left_to_the_loading() -> None:
    """A fingerprint is taken before anything runs."""
    Path("broken.py").write_text("def (\n")
    assert workload_fingerprint("broken.py") != workload_fingerprint("missing.py")
    with pytest.raises(WorkloadError, match=r"^no workload 'no such thing'"):
        workload_fingerprint("no such thing")


def test_a_configuration_counts_by_its_content() -> None:
    """A directory stands for its ``config.json``."""
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps({"model_type": "bert"}))
    before = workload_fingerprint("hf:model")
    Path("model/config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 32}))
    assert workload_fingerprint("hf:model") != before


def test_a_pickled_function_counts_with_the_modules_that_it_names() -> None:
    """By value it holds its own code, but only the name of what it imports."""
    Path("train_by_value.py").write_text(
        "import layers_of_it\n"
        "def make(width):\n"
        "    def build(batch_size, device):\n        return layers_of_it.f, width\n"
        "    return build\n"
        "def build(batch_size, device): ...\n"
    )
    module = sys.modules[load_build("train_by_value.py").__module__]
    three = reference_of(module.make(3))
    assert workload_fingerprint(three) != workload_fingerprint(reference_of(module.make(4)))
    before = workload_fingerprint(three)
    assert workload_fingerprint(reference_of(module.make(3))) == before
    Path("deep_of_it.py").write_text("x = 2\n")
    assert workload_fingerprint(three) != before
