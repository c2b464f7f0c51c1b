"""Which PyTorch can be emulated, and what is said of one that cannot."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from dnnmem_tune.emulator import installation as module
from dnnmem_tune.emulator.card import Card, missing_kernels
from dnnmem_tune.emulator.installation import find_installation
from dnnmem_tune.errors import UnsupportedError


def imagined_python(folder: Path, version: str, cuda: str | None, *, with_library: bool = True) -> str:
    """An interpreter that finds a torch of this kind."""
    torch = folder / "packages" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (torch / "version.py").write_text(
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n".replace("'None'", "None")
    )
    if with_library:
        (torch / "lib" / "libtorch_cuda.so").write_bytes(b"")
    python = folder / "python"
    script = f'#!/bin/sh\nPYTHONPATH="{folder}/packages" exec {sys.executable} -s "$@"\n'
    python.write_text(script.replace("exec", "exec env PYTHONSAFEPATH=1"))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def test_a_cuda_build_is_found_without_importing_it(tmp_path: Path) -> None:
    """Importing PyTorch takes seconds, and would bind it to NVIDIA's own libraries."""
    found = find_installation(imagined_python(tmp_path, "2.6.0+cu124", "12.4"))

    assert (found.version, found.cuda) == ("2.6.0+cu124", (12, 4))
    assert [library.name for library in found.libraries] == ["libtorch_cuda.so"]
    assert not found.is_newer_than_tested


def test_a_newer_release_is_tried(tmp_path: Path) -> None:
    """Most releases need nothing new; the caller can say that it was not tested."""
    assert find_installation(imagined_python(tmp_path, "2.15.0+cu130", "13.0")).is_newer_than_tested


@pytest.mark.parametrize(
    ("version", "cuda", "message"),
    [
        ("2.6.0+cpu", None, "needs a CUDA build of PyTorch, and {python} has torch 2.6.0+cpu without CUDA; "),
        ("2.2.2+cu121", "12.1", "supports torch 2.3 and newer, {python} has 2.2.2+cu121; "),
    ],
)
def test_what_cannot_be_emulated_is_refused(tmp_path: Path, version: str, cuda: str | None, message: str) -> None:
    """With the reason, and another way."""
    python = imagined_python(tmp_path, version, cuda)
    with pytest.raises(UnsupportedError) as caught:
        find_installation(python)

    assert message.format(python=python) in str(caught.value)
    assert str(caught.value).endswith("use the recorder 'fake'")


def test_a_machine_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stubs are written for one binary interface."""
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    with pytest.raises(
        UnsupportedError, match="the emulated card needs Linux on x86-64, this is Linux on aarch64"
    ):
        find_installation()


def test_an_interpreter_that_cannot_run_is_named() -> None:
    """Rather than a traceback of subprocess."""
    with pytest.raises(UnsupportedError, match="cannot run the interpreter '/no/such/python': "):
        find_installation("/no/such/python")


def test_a_card_older_than_every_kernel_is_said() -> None:
    """A V100 on a build for CUDA 13, which dropped it."""
    card = Card(name="V100", total_bytes=1 << 34, context_bytes=0, compute_capability=(7, 0), num_sms=80)

    assert missing_kernels(card, ["75", "100"]) == (
        "this build of PyTorch has no kernels for capability 7.0; those for 7.5 stand in"
    )
    assert missing_kernels(card, ["60", "75"]) == ""
