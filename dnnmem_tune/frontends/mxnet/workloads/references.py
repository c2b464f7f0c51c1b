"""What a reference means for MXNet: ``resnet50``, ``net-symbol.json``, ``net.py:build`` or ``module:build``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dnnmem_tune.errors import WorkloadError

PAPER_NAMES = {
    "vgg16": "vgg16",
    "resnet50": "resnet50_v1",
    "inception_v3": "inceptionv3",
    "lstm": "lstm",
    "bert_base": "bert_base",
}
"""Built-in name, with ``-`` as ``_`` -> what it is called here: a network of ``networks`` or of the model zoo."""

FORMS = (
    "a built-in name, the name of a Gluon model-zoo network, NET-symbol.json, net.py:build or package.module:build"
)

DEFAULT_FUNCTION = "build"


@dataclass(frozen=True, slots=True)
class Named:
    """A built-in network, or one of Gluon's model zoo."""

    name: str


@dataclass(frozen=True, slots=True)
class SymbolFile:
    """A network as ``Symbol.save`` or ``HybridBlock.export`` write it."""

    path: Path


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a file or of an importable module, which returns the network."""

    source: str
    name: str

    @property
    def path(self) -> Path | None:
        """The file; nothing for a module."""
        return Path(self.source) if self.source.endswith(".py") else None


Reference = Named | SymbolFile | Function

_CODE = re.compile(r"(?P<source>.+\.py|\w+(?:\.\w+)*)(?::(?P<name>\w+))?", re.DOTALL)


def parse_reference(text: str) -> Reference:
    """Return what ``text`` refers to, without looking whether it exists.

    Raises:
        WorkloadError: If it has none of the known forms.

    Example:
        >>> parse_reference("ResNet50")
        Named(name='resnet50_v1')
        >>> parse_reference("net.py")
        Function(source='net.py', name='build')

    """
    if text.endswith(".json"):
        return SymbolFile(Path(text))
    code = _CODE.fullmatch(text)
    if code is not None and (code["name"] or code["source"].endswith(".py")):
        return Function(code["source"], code["name"] or DEFAULT_FUNCTION)
    if re.fullmatch(r"[\w.-]+", text):
        folded = text.lower().replace("-", "_")
        return Named(PAPER_NAMES.get(folded, text.lower() if folded == text.lower() else folded))
    raise WorkloadError(f"no MXNet workload {text!r}; give {FORMS}")
