"""Loading the user's Python code, with errors that name its file and line.

A file is loaded as ``python train.py`` would: its directory comes first on ``sys.path``, so it
finds the modules beside it. A file inside a package is imported under its full name, so relative
imports work. Both leave their marks in this process; untrusted or unknown code belongs in a worker.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads.training_step import check_names, near

FILE_MODULE_PREFIX = "_dnnmem_workload_"
"""Start of the module name of a file that belongs to no package; such a name cannot be imported elsewhere."""


def load_from_file(path: Path, name: str) -> Any:
    """Return the attribute ``name`` (dots allowed) of the Python file at ``path``.

    Raises:
        WorkloadError: If the file is missing or raises, or has no such attribute.

    """
    if not path.is_file():
        siblings = [str(path.with_name(file.name)) for file in path.parent.glob("*.py")]
        raise WorkloadError(f"no file {str(path)!r}{near(str(path), siblings)}; give the path of a Python file")
    return _attribute(_import_file(path.resolve(), shown=str(path)), name, shown=str(path))


def load_from_module(module: str, name: str) -> Any:
    """Return the attribute ``name`` (dots allowed) of an importable module; the current directory is searched too.

    Raises:
        WorkloadError: If the module is missing or raises, or has no such attribute.

    """
    put_on_path(Path.cwd())
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise WorkloadError(
                f"no module {module!r} ({error}); check the name, or give the path of the file"
            ) from error
        raise WorkloadError(_while_importing(error, module)) from error
    except (Exception, SystemExit) as error:
        raise WorkloadError(_while_importing(error, module)) from error
    return _attribute(imported, name, shown=module)


def put_on_path(directory: Path) -> None:
    """Let modules in ``directory`` be imported, before any others of the same name."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def package_root(path: Path) -> tuple[Path, str]:
    """Return the directory that a file is imported from and its dotted module name."""
    parts = [] if path.stem == "__init__" else [path.stem]
    directory = path.parent
    while (directory / "__init__.py").is_file():
        parts.insert(0, directory.name)
        directory = directory.parent
    return directory, ".".join(parts)


def require_build(build: Any, shown: str) -> None:
    """Check that ``build`` can be called as ``build(batch_size, device, **hyperparameters)``.

    Raises:
        WorkloadError: If it is no function, or its first parameters are others.

    """
    wanted = "a workload is a function build(batch_size, device, **hyperparameters), or a TrainingStep"
    if not callable(build):
        raise WorkloadError(f"{shown} is of type {type(build).__name__}; {wanted}")
    try:
        signature = inspect.signature(build)
    except ValueError:  # some callables in C have none; the call itself will tell
        return
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    names = [parameter.name for parameter in positional[:2]]
    if names == ["batch_size", "device"][: len(names)] and (len(names) == 2 or takes_any):
        return
    raise WorkloadError(f"{_definition(build) or shown}: it takes {signature}; {wanted}")


def require_parameters(build: Any, params: Iterable[str]) -> None:
    """Check that ``build`` takes these hyperparameters.

    Raises:
        UsageError: For the first that it does not take, with the near matches and those it takes.

    """
    try:
        signature = inspect.signature(build)
    except (ValueError, TypeError):  # some callables in C have none; the call itself will tell
        return
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    check_names(params, (name for name in names if name not in ("batch_size", "device")), of="the workload")


def _import_file(path: Path, shown: str) -> ModuleType:
    root, name = package_root(path)
    put_on_path(root)
    try:
        if "." in name or path.stem == "__init__":
            return importlib.import_module(name)
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
        spec = importlib.util.spec_from_file_location(f"{FILE_MODULE_PREFIX}{path.stem}_{digest}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pickle look their module up
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        raise WorkloadError(_while_importing(error, shown, path)) from error


def _attribute(module: ModuleType, name: str, shown: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            functions = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            raise WorkloadError(
                f"{shown} has no function {name!r}{near(part, functions)}; "
                f"it defines {', '.join(sorted(_own(functions, found))) or 'none'}"
            )
        found = getattr(found, part)
    return found


def _own(names: list[str], owner: Any) -> list[str]:
    """Names of what was defined in ``owner`` itself, not imported into it."""
    module = getattr(owner, "__name__", None)
    return [name for name in names if getattr(getattr(owner, name), "__module__", None) == module]


def _while_importing(error: BaseException, shown: str, path: Path | None = None) -> str:
    """One line: where in the user's code it happened, what, and when."""
    reason = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        where, reason = f"{_relative(error.filename, path, shown)}:{error.lineno}", error.msg
    else:
        root = path.parent if path else None
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename, root)]
        where = f"{_relative(frames[-1].filename, path, shown)}:{frames[-1].lineno}" if frames else shown
    kind = type(error).__name__
    return (
        f"{where}: {kind}: {reason} (raised while {shown} was imported)"
        if reason
        else (f"{where}: {kind} (raised while {shown} was imported)")
    )


def _is_users(filename: str, root: Path | None) -> bool:
    file = Path(filename)
    if root is not None and not file.is_relative_to(root):
        return False
    return (
        file.is_file()
        and not any(part in ("site-packages", "dnnmem_tune") for part in file.parts)
        and (not file.is_relative_to(Path(traceback.__file__).parent))
    )


def _relative(filename: str, path: Path | None, shown: str) -> str:
    """The user's spelling of the file that was asked for; other files by their path."""
    return shown if path is not None and Path(filename) == path else filename


def _definition(function: Any) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None
