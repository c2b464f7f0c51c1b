"""What is read from PyTorch's shared objects, and what is made of it. Needs no PyTorch."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from dnnmem_tune.emulator.build import SOURCES
from dnnmem_tune.emulator.installation import Installation
from dnnmem_tune.emulator.stubs import (
    LIBRARIES,
    defined_functions,
    read_wanted,
    stub_assembly,
    version_script,
)

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("readelf")), reason="needs g++ and binutils"
)


def shared_object(folder: Path, name: str, source: str, *arguments: str) -> Path:
    """Compile ``source`` to a shared object."""
    file = folder / f"{name}.cpp"
    file.write_text(source)
    target = folder / f"{name}.so"
    command = ["g++", "-shared", "-fPIC", str(file), "-o", str(target), *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return target


@pytest.fixture
def needy(tmp_path: Path) -> Path:
    """A shared object that needs a versioned symbol of libcudart and an unversioned one of libnccl."""
    script = tmp_path / "map"
    script.write_text("libcudart.so.13 { global: *; };\n")
    real = shared_object(
        tmp_path, "real", 'extern "C" int cudaMalloc(void **, unsigned long) { return 0; }',
        "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script,{script}",
    )  # fmt: skip
    return shared_object(
        tmp_path, "needy",
        'extern "C" int cudaMalloc(void **, unsigned long), ncclSend();\n'
        'extern "C" int use() { return cudaMalloc(0, 0) + ncclSend(); }',
        str(real),
    )  # fmt: skip


def test_wanted_symbols_are_read_with_their_versions(needy: Path) -> None:
    """The loader matches both, so a stub must have both."""
    wanted = read_wanted([needy])
    libraries = {library.name: library for library in LIBRARIES}

    assert wanted.sonames["libcudart"] == "libcudart.so.13"
    assert wanted.symbols(libraries["libcudart"]) == {"cudaMalloc"}
    assert wanted.symbols(libraries["libnccl"]) == {"ncclSend"}
    assert wanted.version(libraries["libcudart"]) == "libcudart.so.13"
    assert wanted.version(libraries["libnccl"]) is None


def test_a_stub_reports_its_name_and_returns_its_status(tmp_path: Path) -> None:
    """Each generated function ends in one place, which sees the symbol and decides what is returned."""
    assembly = tmp_path / "stubs.S"
    assembly.write_text(stub_assembly(["cublasFoo", "cusparseCreateFoo"], 3))
    source = (
        "#include <string>\nstatic std::string last;\n"
        'extern "C" int card_stub_called(const char *s, int status) { last = s; return status; }\n'
        'extern "C" const char *last_called() { return last.c_str(); }\n'
    )
    library = ctypes.CDLL(str(shared_object(tmp_path, "stubs", source, str(assembly))))
    library.last_called.restype = ctypes.c_char_p

    assert (library.cublasFoo(), library.last_called()) == (3, b"cublasFoo")
    assert (library.cusparseCreateFoo(), library.last_called()) == (10, b"cusparseCreateFoo")


def test_functions_written_by_hand_are_seen(tmp_path: Path) -> None:
    """A stub is generated only for what nobody wrote."""
    compiled = tmp_path / "cufft.o"
    flags = ["-DCUDA_MAJOR=13", "-DCUDA_VERSION=13000", "-fPIC"]
    subprocess.run(["g++", *flags, "-c", str(SOURCES / "cufft.cpp"), "-o", str(compiled)], check=True)

    assert {"cufftCreate", "cufftXtMakePlanMany"} <= defined_functions([compiled])


def test_only_the_first_library_exports_the_card() -> None:
    """One card in a process: the others bind to it."""
    first = version_script("libcudart.so.13", ["cudaMalloc", "card_malloc"], is_first=True)
    other = version_script("libcublas.so.13", ["cublasCreate_v2"], is_first=False)

    assert first == "libcudart.so.13 { global: cudaMalloc; local: *; };\nCARD { global: card_*; };\n"
    assert other == "libcublas.so.13 { global: cublasCreate_v2; local: *; };\n"


def test_every_source_is_in_a_library() -> None:
    """A file that no library names would never be compiled."""
    named = {source for library in LIBRARIES for source in library.sources}

    assert named == {file.name for file in SOURCES.glob("*.cpp")}


@pytest.mark.parametrize("major", [12, 13])
def test_sources_compile_without_a_warning(major: int, tmp_path: Path) -> None:
    """Against either CUDA release, with no NVIDIA header in sight."""
    for source in sorted(SOURCES.glob("*.cpp")):
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fsyntax-only"]
        done = subprocess.run(
            ["g++", *flags, f"-DCUDA_MAJOR={major}", f"-DCUDA_VERSION={major}000", str(source)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


_FIELDS = {
    "cudaDeviceProp": "name totalGlobalMem major minor multiProcessorCount maxThreadsPerMultiProcessor "
    "l2CacheSize sharedMemPerMultiprocessor sharedMemPerBlockOptin maxBlocksPerMultiProcessor clusterLaunch",
    "cudaPointerAttributes": "type device devicePointer hostPointer",
    "cudaFuncAttributes": "maxThreadsPerBlock numRegs ptxVersion binaryVersion maxDynamicSharedSizeBytes",
}
_CONSTANTS = (
    "cudaErrorMemoryAllocation", "cudaErrorInvalidDevice", "cudaDevAttrMultiProcessorCount",
    "cudaDevAttrMaxSharedMemoryPerBlockOptin", "cudaDevAttrMaxBlocksPerMultiprocessor", "cudaDevAttrClusterLaunch",
    "cudaDevAttrMaxThreadsPerMultiProcessor", "cudaMemoryTypeDevice", "cudaStreamCaptureStatusActive",
    "CUDA_ERROR_OUT_OF_MEMORY", "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL", "CU_FUNC_ATTRIBUTE_NUM_REGS",
)  # fmt: skip


def layout_program(header: str, *, with_driver: bool) -> str:
    """A program that prints sizes, offsets and constants of a header."""
    lines = [header, "#include <cstdio>", "#include <cstddef>", "int main() {"]
    for struct, fields in _FIELDS.items():
        lines.append(f'std::printf("{struct} %zu\\n", sizeof(struct {struct}));')
        lines += [
            f'std::printf("{struct}.{field} %zu\\n", offsetof(struct {struct}, {field}));'
            for field in fields.split()
        ]
    lines += [
        f'std::printf("{name} %d\\n", (int){name});' for name in _CONSTANTS if with_driver or name[:2] != "CU"
    ]
    return "\n".join([*lines, "}"])


def printed(folder: Path, name: str, program: str, *flags: str) -> str:
    """What a program prints."""
    source = folder / f"{name}.cpp"
    source.write_text(program)
    subprocess.run(["g++", *flags, str(source), "-o", str(folder / name)], check=True, capture_output=True)
    return subprocess.run([str(folder / name)], check=True, capture_output=True, text=True).stdout


def test_layouts_are_those_of_nvidias_headers(installation: Installation, tmp_path: Path) -> None:
    """Where the CUDA headers are installed beside PyTorch; the sources themselves do without."""
    packages = installation.torch.parent
    headers = [file.parent for file in packages.glob("nvidia/**/cuda_runtime_api.h")]
    extra = [file.parents[1] for file in packages.glob("nvidia/**/crt/host_defines.h")]
    if not headers or not extra:
        pytest.skip("the CUDA headers are not installed beside PyTorch")
    major = installation.cuda[0]
    has_driver = (headers[0] / "cuda.h").exists()
    theirs = "#include <cuda_runtime_api.h>\n" + ("#include <cuda.h>\n" if has_driver else "")
    includes = [f"-I{folder}" for folder in (*headers, *extra)]

    own = printed(
        tmp_path,
        "own",
        layout_program('#include "cuda_abi.h"', with_driver=has_driver),
        f"-I{SOURCES}",
        f"-DCUDA_MAJOR={major}",
    )
    assert own == printed(tmp_path, "theirs", layout_program(theirs, with_driver=has_driver), *includes)
