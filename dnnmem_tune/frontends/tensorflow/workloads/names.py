"""The names of the built-in workloads; importing this needs no TensorFlow."""

from __future__ import annotations

from pathlib import Path

IMAGE_MODELS = {
    "inception_v3": ("InceptionV3", 299),
    "resnet50": ("ResNet50", 224),
    "vgg16": ("VGG16", 224),
}
"""Name -> function of ``keras.applications`` and side of its images in pixels."""

NAMES = ("bert-base", "inception_v3", "lstm", "resnet50", "vgg16")


def canonical_name(name: str) -> str | None:
    """Return the registered spelling of ``name`` (case, ``-`` and ``_`` do not matter), or None.

    Example:
        >>> canonical_name("BERT_base")
        'bert-base'

    """
    return {_fold(known): known for known in NAMES}.get(_fold(name))


def source_files() -> list[Path]:
    """Return the files that decide what is traced, and how."""
    return sorted(Path(__file__).parent.parent.rglob("*.py"))


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
