"""Find the PyTorch of an interpreter, without importing it, and say whether it can be emulated."""

from __future__ import annotations

import importlib.util
import inspect
import json
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dnnmem_tune.errors import UnsupportedError

OLDEST = (2, 3)
NEWEST = (2, 14)
"""Releases of PyTorch that were built and tested; a newer one is tried, with a note."""

_PACKAGES = ("torch", "torchvision", "torchaudio", "xformers", "flash_attn")
"""PyTorch, and packages with libraries of their own that call CUDA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A CUDA build of PyTorch."""

    python: str
    """The interpreter it is installed for."""

    torch: Path
    """The folder of the package."""

    version: str
    """Such as ``2.14.1+cu130``."""

    cuda: tuple[int, int]
    """The CUDA release it was built with."""

    libraries: tuple[Path, ...]
    """The shared objects of PyTorch, and of packages that build on its CUDA libraries."""

    @property
    def is_newer_than_tested(self) -> bool:
        """Whether the release came out after those that were tested."""
        return _release(self.version) > NEWEST


def find_installation(python: str | None = None) -> Installation:
    """Return the CUDA build of PyTorch that an interpreter would import.

    Args:
        python: Path of an interpreter; the running one by default.

    Raises:
        UnsupportedError: If there is none, or it cannot be emulated; the message says why and what else to do.

    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnsupportedError(
            f"the emulated card needs Linux on x86-64, this is {platform.system()} on {platform.machine()}; "
            "use the recorder 'fake'"
        )
    release, folders = _probe(python) if python else (sys.version_info[:2], _folders())
    python = python or sys.executable
    folder = folders["torch"]
    if folder is None:
        raise UnsupportedError(
            f"the emulated card runs PyTorch itself, and {python} has none; install the CUDA build of torch "
            "there, name an interpreter that has it, or use the recorder 'fake'"
        )
    torch = Path(folder)
    version, cuda = _read_version(torch)
    if cuda is None or not (torch / "lib" / "libtorch_cuda.so").exists():
        raise UnsupportedError(
            f"the emulated card needs a CUDA build of PyTorch, and {python} has torch {version} without CUDA; "
            "name an interpreter that has one, or use the recorder 'fake'"
        )
    if _release(version) < OLDEST:
        raise UnsupportedError(
            f"the emulated card supports torch {OLDEST[0]}.{OLDEST[1]} and newer, {python} has {version}; "
            "use the recorder 'fake'"
        )
    if release < (3, 11):
        raise UnsupportedError(
            f"the emulated card runs in Python 3.11 or newer, {python} is {release[0]}.{release[1]}; "
            "use the recorder 'fake'"
        )
    extensions = [Path(each) for name, each in folders.items() if each and name != "torch"]
    return Installation(
        python=python,
        torch=torch,
        version=version,
        cuda=cuda,
        libraries=(
            *sorted((torch / "lib").glob("*.so*")),
            *(so for each in extensions for so in sorted(each.rglob("*.so"))),
        ),
    )


def _folders() -> dict[str, str | None]:
    """Return the folder of each package, without importing it."""
    specs = {name: importlib.util.find_spec(name) for name in _PACKAGES}
    return {
        name: spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None
        for name, spec in specs.items()
    }


def _probe(python: str) -> tuple[tuple[int, int], dict[str, str | None]]:
    """Return the release of an interpreter, and the folders of the packages that matter here."""
    imports = "from __future__ import annotations\nimport importlib.util, json, sys"
    program = (
        f"{imports}\n_PACKAGES = {_PACKAGES!r}\n{inspect.getsource(_folders)}"
        'print(json.dumps({"python": list(sys.version_info[:2]), "folders": _folders()}))'
    )
    try:
        # -P: a file named torch.py in the current folder is not PyTorch.
        done = subprocess.run(
            [python, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise UnsupportedError(f"cannot run the interpreter {python!r}: {''.join(reason)}") from error
    found = json.loads(done.stdout)
    return (found["python"][0], found["python"][1]), found["folders"]


def _read_version(torch: Path) -> tuple[str, tuple[int, int] | None]:
    text = (torch / "version.py").read_text(encoding="utf-8")
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda(?:: [^=]+)? = '(\d+)\.(\d+)", text, re.MULTILINE)
    return version[1] if version else "unknown", (int(cuda[1]), int(cuda[2])) if cuda else None


def _release(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
