"""Compile the stub libraries for one installation of PyTorch into a folder."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dnnmem_tune.emulator.installation import Installation
from dnnmem_tune.emulator.stubs import (
    LIBRARIES,
    Library,
    Wanted,
    defined_functions,
    read_wanted,
    stub_assembly,
    version_script,
)
from dnnmem_tune.errors import TraceError

SOURCES = Path(__file__).resolve().parent / "src"
MANIFEST = "build.json"
COMPILERS = ("c++", "g++", "clang++")

_PROBE = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.load import load
load(sys.argv[1], Card(name="probe", total_bytes=8 << 30, context_bytes=0, compute_capability=(8, 0), num_sms=108,
     threads_per_sm=2048))
import torch
block = torch.empty(1000, 1000, device="cuda")
print(json.dumps({
    "kernel_archs": [
        arch.removeprefix("sm_").rstrip("af") for arch in torch.cuda.get_arch_list() if arch.startswith("sm_")
    ],
    "cudnn_compiled": list(torch._C._cudnn.getCompileVersion()),
    "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
}), flush=True)
import os
os._exit(0)
"""


def find_compiler(preferred: str | None = None) -> str:
    """Return a C++ compiler of this machine.

    Args:
        preferred: A command to use in place of those that are looked for.

    Raises:
        TraceError: If there is none.

    """
    candidates = (preferred,) if preferred else COMPILERS
    for name in candidates:
        path = shutil.which(name)
        if path:
            return path
    raise TraceError(
        f"building the emulated card needs a C++ compiler, and none of {', '.join(candidates)} is installed; "
        "install g++ and binutils, or use the recorder 'fake'"
    )


def build(installation: Installation, folder: Path, *, compiler: str) -> None:
    """Compile every stub library into ``folder`` and check that PyTorch runs on them.

    Args:
        installation: The PyTorch to build for; its files are read and not changed.
        folder: An empty folder.
        compiler: Path of a C++ compiler.

    Raises:
        TraceError: If the compiler fails, or PyTorch does not run on the result.
        OSError: If the folder cannot be written.

    """
    try:
        wanted = read_wanted(installation.libraries)
        order = _compile_all(installation, wanted, folder, compiler)
    except FileNotFoundError as error:
        raise TraceError(
            f"building the emulated card needs binutils: {error.filename!r} is not installed"
        ) from error
    except subprocess.CalledProcessError as error:
        raise TraceError(_explain(error)) from error
    (folder / "libcuda.so").symlink_to("libcuda.so.1")  # Triton links its launcher with -lcuda
    manifest: dict[str, object] = {
        "torch": installation.version,
        "python": installation.python,
        "order": order,
        "kernel_archs": ["80"],
        "cudnn_version": 92400,
    }
    _write(folder, manifest)
    found = _probe(installation, folder)
    major, minor, patch = found["cudnn_compiled"]
    manifest["kernel_archs"] = found["kernel_archs"]
    # cuDNN counts 8.9.2 as 8902 and 9.1.0 as 90100.
    manifest["cudnn_version"] = major * (1000 if major < 9 else 10000) + minor * 100 + patch
    _write(folder, manifest)


def _compile_all(installation: Installation, wanted: Wanted, folder: Path, compiler: str) -> list[str]:
    work = folder / "objects"
    work.mkdir()
    major, minor = installation.cuda
    flags = ["-O1", "-fPIC", "-std=c++17", f"-DCUDA_MAJOR={major}", f"-DCUDA_VERSION={major * 1000 + minor * 10}"]
    libraries = [library for library in LIBRARIES if library.name in wanted.sonames]

    def compile_one(source: str) -> None:
        _run(compiler, *flags, "-c", str(SOURCES / source), "-o", str(work / source) + ".o")

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, sorted({source for library in libraries for source in library.sources})))
    cudart = wanted.sonames["libcudart"]
    _link(libraries[0], wanted, folder, compiler, against=None)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda library: _link(library, wanted, folder, compiler, against=cudart), libraries[1:]))
    shutil.rmtree(work)
    return [wanted.sonames[library.name] for library in libraries]


def _link(library: Library, wanted: Wanted, folder: Path, compiler: str, *, against: str | None) -> None:
    """Link one library: the functions written by hand, and a stub for every other wanted symbol."""
    work = folder / "objects"
    soname = wanted.sonames[library.name]
    objects = [work / f"{source}.o" for source in library.sources]
    written = defined_functions(objects)
    symbols = wanted.symbols(library)
    assembly = work / f"{soname}.S"
    assembly.write_text(stub_assembly(symbols - written, library.status))
    command = [compiler, "-shared", "-o", str(folder / soname), *map(str, objects), str(assembly)]
    command += [f"-Wl,-soname,{soname}", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN", "-ldl"]
    if against:
        command.append(str(folder / against))
    version = wanted.version(library)
    if version:
        script = work / f"{soname}.map"
        script.write_text(version_script(version, symbols | written, is_first=against is None))
        command.append(f"-Wl,--version-script,{script}")
    _run(*command)


def _probe(installation: Installation, folder: Path) -> dict[str, Any]:
    """Run PyTorch on the new libraries: one tensor, whose blocks are known by hand."""
    program = f"import sys; sys.path.insert(0, {str(SOURCES.parents[2])!r}){_PROBE}"
    try:
        done = subprocess.run(
            [installation.python, "-P", "-c", program, str(folder)],
            capture_output=True, text=True, timeout=300, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or f"it ended with status {error.returncode}").splitlines()[-1]
        raise TraceError(
            f"the emulated card was built, but torch {installation.version} does not run on it: {last}; "
            "use the recorder 'fake'"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TraceError(
            f"torch {installation.version} did not start on the emulated card in five minutes"
        ) from error
    if (found["allocated"], found["reserved"]) != (4_000_256, 20 << 20):
        raise TraceError(
            f"torch {installation.version} on the emulated card reports {found['allocated']} bytes allocated and "
            f"{found['reserved']} reserved for a tensor of 4,000,000 bytes, not 4,000,256 and 20,971,520; "
            "use the recorder 'fake'"
        )
    return found


def _write(folder: Path, manifest: dict[str, object]) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _explain(error: subprocess.CalledProcessError) -> str:
    lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
    reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
    return (
        f"building the emulated card failed: {error.cmd[0]} ended with status {error.returncode}: {reason.strip()}"
    )
