"""A hash of the source that a workload consists of, so that a cache notices an edit."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import pickletools
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from dnnmem_tune.frontends.torch.workloads import builtin
from dnnmem_tune.frontends.torch.workloads.by_value import pickled_bytes
from dnnmem_tune.frontends.torch.workloads.references import (
    Builtin,
    FileFunction,
    HuggingFace,
    ModuleFunction,
    Pickle,
    ZooModel,
    parse_reference,
)
from dnnmem_tune.frontends.torch.workloads.user_code import package_root


def workload_fingerprint(reference: str) -> str:
    """Return a hash that changes when the source behind ``reference`` does.

    Covered: the bytes of the file and of every module that it imports, directly or not, from the
    directory it is imported from; the configuration of ``hf:``; the release of the package of
    ``hf:``, ``timm:`` and ``torchvision:``; a pickled function, with the local modules it names; and
    this package's own workloads. Not covered: installed packages other than those (torch's release belongs in
    the key of the cache), modules imported by a computed name, data files that the code reads, and
    environment variables. Nothing is imported, and a missing file is not an error here.

    Args:
        reference: As for `load_build`.

    Returns:
        64 hexadecimal digits.

    Raises:
        WorkloadError: If the reference has none of the known forms.

    """
    parsed = parse_reference(reference)
    parts: list[str] = []
    files: set[Path] = set()
    match parsed:
        case Builtin(name):
            parts = [name]
        case FileFunction(path, name):
            parts, files = [str(path.resolve()), name], local_sources(path)
        case ModuleFunction(module, name):
            origin = _module_file(module)
            parts, files = [module, name], local_sources(origin) if origin else set()
        case HuggingFace(path):
            parts = [str(path), _release("transformers")]
            files = {path / "config.json" if path.is_dir() else path}
        case ZooModel(package, name):
            parts = [package, name, _release(package)]
        case Pickle(payload):
            pickled = pickled_bytes(payload)
            parts = [hashlib.sha256(pickled).hexdigest()]
            files = set().union(*(local_sources(file) for file in _modules_named_in(pickled)))
    digest = hashlib.sha256()
    for part in [type(parsed).__name__, *parts]:
        digest.update(f"{len(part)}:{part}".encode())
    for file in [*sorted(files), *builtin.source_files()]:
        digest.update(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest())
    return digest.hexdigest()


def local_sources(path: Path) -> set[Path]:
    """Return a Python file and the modules it imports, directly or not, from where it is imported itself.

    Found by reading ``import`` statements, wherever they stand in the file. Of an installed file, only modules
    of its own package are followed.
    """
    root, _ = package_root(path.resolve())
    pending, found = [path.resolve()], set()
    while pending:
        file = pending.pop()
        if file in found or not file.is_file() or _is_foreign(file, root, path.resolve()):
            continue
        found.add(file)
        for name in _imported_names(file):
            pending.extend(_files_of(name, root))
    return found


def _imported_names(file: Path) -> Iterator[str]:
    """Dotted names that may be modules: for ``from a import b`` both ``a`` and ``a.b``."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    _, module = package_root(file)
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _files_of(name: str, root: Path) -> Iterator[Path]:
    """The files that importing ``name`` from ``root`` would run: its packages and itself."""
    place = root
    for part in filter(None, name.split(".")):
        place = place / part
        yield place.with_name(f"{part}.py")
        yield place / "__init__.py"


def _is_foreign(file: Path, root: Path, start: Path) -> bool:
    """Whether ``file`` belongs to another installed package than the one that ``start`` is from."""
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    if root not in installed:
        return False
    return file.relative_to(root).parts[0] != start.relative_to(root).parts[0]


def _module_file(module: str) -> Path | None:
    """The file of a module, found without importing its parents."""
    search: list[str] | None = [str(Path.cwd()), *sys.path]
    prefix = ""
    origin = None
    for part in module.split("."):
        prefix = f"{prefix}.{part}" if prefix else part
        spec = PathFinder.find_spec(prefix, search)
        if spec is None:
            return None
        origin, search = spec.origin, list(spec.submodule_search_locations or [])
    return Path(origin) if origin and origin.endswith(".py") else None


def _modules_named_in(pickled: bytes) -> Iterable[Path]:
    """Files of the modules that a pickle refers to by name, less those of installed packages.

    Any string that is the name of a loaded module counts: too many is a needless rebuild, too few a stale answer.
    """
    installed = tuple(str(Path(sysconfig.get_path(name))) for name in ("purelib", "platlib", "stdlib"))
    names = {argument.split(" ")[0] for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    for name in sorted(names & set(sys.modules)):
        file = getattr(sys.modules[name], "__file__", None)
        if name != "__main__" and file and file.endswith(".py") and not file.startswith(installed):
            yield Path(file)


def _release(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
