"""What PyTorch asks of its CUDA libraries, and the assembly of stubs for all that is not written by hand.

The symbols, and the versions they are bound to, are read from the undefined symbols of the
installed shared objects. So the emulator fits the installed release, and nothing has to be kept in a list.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One stub library."""

    name: str
    """Without the suffix: ``libcudart``."""

    sources: tuple[str, ...]
    """Files in ``src``."""

    status: int
    """What a generated stub returns: success where a call only computes, else the word for unsupported."""

    version: str | None = "soname"
    """The version its symbols are bound to: the soname, a fixed name, or none."""

    pattern: str | None = None
    """For unversioned symbols: which belong to this library."""


# In the order in which they are loaded: each needs those before it.
LIBRARIES = (
    Library(
        name="libcudart",
        sources=(
            "settings.cpp", "memory.cpp", "streams.cpp",
            "runtime_device.cpp", "runtime_memory.cpp", "runtime_stream.cpp", "runtime_kernel.cpp",
        ),
        status=801,
    ),
    Library(name="libcuda", sources=("driver.cpp",), status=801, version=None, pattern=r"cu(?!File)[A-Z]\w*"),
    Library(name="libnvidia-ml", sources=("nvml.cpp",), status=3, version=None),
    Library(name="libnvJitLink", sources=("empty.cpp",), status=0),
    Library(name="libcublasLt", sources=("cublaslt.cpp",), status=15),
    Library(name="libcublas", sources=("cublas.cpp",), status=0),
    Library(
        name="libcudnn",
        sources=("cudnn_workspace.cpp", "cudnn_legacy.cpp", "cudnn_graph.cpp", "cudnn_rnn.cpp"),
        status=0,
    ),
    Library(name="libcufft", sources=("cufft.cpp",), status=0),
    Library(name="libcurand", sources=("empty.cpp",), status=0),
    Library(name="libcusparse", sources=("cusparse.cpp",), status=0),
    Library(name="libcusparseLt", sources=("empty.cpp",), status=10, version=None, pattern=r"cusparseLt\w+"),
    Library(name="libcusolver", sources=("cusolver.cpp",), status=0),
    Library(name="libnvrtc", sources=("nvrtc.cpp",), status=0),
    Library(name="libcupti", sources=("cupti.cpp",), status=0),
    Library(name="libnccl", sources=("nccl.cpp",), status=0, version=None, pattern=r"nccl\w+"),
    Library(name="libcufile", sources=("empty.cpp",), status=5001, version=None, pattern=r"cuFile\w+"),
    Library(name="libnvshmem_host", sources=("empty.cpp",), status=0, version="NVSHMEM"),
    Library(name="libnvToolsExt", sources=("empty.cpp",), status=0),
)  # fmt: skip

# Calls whose outputs a stub would leave unset fail instead of pretending.
_REFUSED = (
    (re.compile(r"cusolver.*_bufferSize$"), 7),
    (re.compile(r"cusparse(Create|.*_bufferSize|.*Nnz|.*GetSize|SpGEMM)"), 10),
    (re.compile(r"ncclComm(Grow|Shrink|GetUniqueId|WindowRegister)"), 5),
    (re.compile(r"nvshmem"), 1),
    (re.compile(r"cudnn(Get|Create)"), 9),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a set of shared objects asks the loader for."""

    sonames: dict[str, str]
    """Library name -> soname: ``libcudart`` -> ``libcudart.so.13``."""

    versioned: dict[str, frozenset[str]]
    """Version -> symbols bound to it."""

    unversioned: frozenset[str]

    def symbols(self, library: Library) -> set[str]:
        """Return the symbols that ``library`` must have."""
        version = self.version(library)
        symbols = set(self.versioned.get(version, ())) if version else set()
        if library.pattern:
            symbols |= {symbol for symbol in self.unversioned if re.fullmatch(library.pattern, symbol)}
        return symbols

    def version(self, library: Library) -> str | None:
        """Return the version that the symbols of ``library`` carry."""
        return self.sonames[library.name] if library.version == "soname" else library.version


def read_wanted(objects: Sequence[Path]) -> Wanted:
    """Return what ``objects`` need.

    Raises:
        OSError: If binutils' ``readelf`` or ``nm`` is not installed.
        subprocess.CalledProcessError: If one of them fails.

    """
    names = {library.name for library in LIBRARIES}
    # Opened by name at run time, not needed by the link.
    sonames = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1"}
    for soname in re.findall(r"NEEDED.*\[(\S+)\]", _run("readelf", "-d", *map(str, objects))):
        if soname.partition(".so")[0] in names:
            sonames[soname.partition(".so")[0]] = soname
    versioned: dict[str, set[str]] = {}
    unversioned: set[str] = set()
    for line in _run("nm", "-D", "--undefined-only", *map(str, objects)).splitlines():
        symbol, _, version = line.rpartition(" ")[2].partition("@")
        if version:
            versioned.setdefault(version.strip("@"), set()).add(symbol)
        else:
            unversioned.add(symbol)
    return Wanted(sonames, {key: frozenset(value) for key, value in versioned.items()}, frozenset(unversioned))


def defined_functions(objects: Iterable[Path]) -> set[str]:
    """Return the C functions that compiled ``objects`` define."""
    lines = _run("nm", "--defined-only", "-g", *map(str, objects)).splitlines()
    rows = [line.split() for line in lines]
    return {row[2] for row in rows if len(row) == 3 and row[1] in "TW" and not row[2].startswith("_Z")}


def stub_assembly(symbols: Iterable[str], status: int) -> str:
    """Return assembly that defines each of ``symbols`` as a call of ``card_stub_called(name, status)``."""
    text = ['.section .note.GNU-stack,"",@progbits', ".text"]
    names = [".section .rodata"]
    for index, symbol in enumerate(sorted(symbols)):
        code = next((refusal for pattern, refusal in _REFUSED if pattern.match(symbol)), status)
        text += [
            f".globl {symbol}",
            f".type {symbol},@function",
            f"{symbol}: endbr64",
            f" leaq .L{index}(%rip),%rdi",
            f" movl ${code},%esi",
            " jmp card_stub_called@PLT",
        ]
        names.append(f'.L{index}: .asciz "{symbol}"')
    return "\n".join([*text, *names, ""])


def version_script(version: str, symbols: Iterable[str], *, is_first: bool) -> str:
    """Return the linker script that binds ``symbols`` to ``version``; the first library exports the card too."""
    names = "".join(f" {symbol};" for symbol in sorted(symbols) if not symbol.startswith("card_"))
    listed = f"global:{names} " if names else ""
    return f"{version} {{ {listed}local: *; }};\n" + ("CARD { global: card_*; };\n" if is_first else "")


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
