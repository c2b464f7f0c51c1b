"""From a reference to a network and the shapes of its inputs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mxnet
from mxnet.gluon.model_zoo import vision

from dnnmem_tune.errors import UsageError, WorkloadError
from dnnmem_tune.frontends.mxnet.workloads.networks import NETWORKS
from dnnmem_tune.frontends.mxnet.workloads.references import (
    PAPER_NAMES,
    Function,
    Named,
    SymbolFile,
    parse_reference,
)

_LARGE_IMAGES = {"inceptionv3": 299}
_IMAGE_SIZE = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is trained."""

    block: Any
    """A Gluon block; None where ``symbol`` is given."""

    symbol: Any
    """A symbol; None where ``block`` is given."""

    shapes: dict[str, tuple[int, ...]]
    """Name of an input -> shape of one sample, without the batch axis; a label may be missing."""


Maker = Callable[[dict[str, Any]], Network]


def load_network(text: str) -> Maker:
    """Return what makes the network of a reference from its hyperparameters.

    Raises:
        WorkloadError: If it cannot be found or loaded.

    """
    match parse_reference(text):
        case Named(name):
            return _named(name, text)
        case SymbolFile(path):
            return _symbol_file(path)
        case Function() as function:
            return _function(function, text)


def _named(name: str, text: str) -> Maker:
    if name in NETWORKS:
        make = NETWORKS[name]

        def build(params: dict[str, Any]) -> Network:
            _check_names(params, inspect.signature(make).parameters, text)
            block, sample = make(**params)
            return Network(block=block, symbol=None, shapes={"data": sample})

        return build
    zoo = _zoo_names()
    if name not in zoo:
        known = sorted({*zoo, *NETWORKS, *PAPER_NAMES})
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}"
        raise WorkloadError(f"no MXNet workload {text!r}{hint}")

    def build_zoo(params: dict[str, Any]) -> Network:
        _check_names(params, ("image_size", "classes"), text)
        size = params.get("image_size", _LARGE_IMAGES.get(name, _IMAGE_SIZE))
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"image_size is a whole number of at least 1, got {size!r}")
        block = vision.get_model(name, classes=params.get("classes", 1000))
        return Network(block=block, symbol=None, shapes={"data": (3, size, size)})

    return build_zoo


def _zoo_names() -> list[str]:
    """Ask the zoo for a name that it cannot have; its answer lists those that it has."""
    try:
        vision.get_model("")
    except ValueError as error:
        return str(error).partition("Available options are")[2].split()
    return []


def _check_names(params: Mapping[str, Any], accepted: Iterable[str], text: str) -> None:
    names = list(accepted)
    for name in params:
        if name not in names:
            raise UsageError(f"{text} takes no hyperparameter {name!r}; it takes {', '.join(names)}")


def _symbol_file(path: Path) -> Maker:
    try:
        document = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"the symbol file {str(path)!r} cannot be read: {error}") from error
    try:
        content = json.loads(document)
    except ValueError as error:
        raise WorkloadError(f"{str(path)!r} is no symbol: it is not JSON, or cut off ({error})") from error
    if not isinstance(content, dict) or not {"nodes", "arg_nodes", "heads"} <= content.keys():
        raise WorkloadError(
            f"{str(path)!r} is JSON but no symbol; Symbol.save and HybridBlock.export write symbols"
        )
    try:
        symbol = mxnet.sym.load_json(document)
    except mxnet.base.MXNetError as error:
        raise WorkloadError(f"MXNet cannot load the symbol {str(path)!r}: {_first_line(error)}") from error

    def build(params: dict[str, Any]) -> Network:
        _check_names(params, ("shapes",), str(path))
        return Network(block=None, symbol=symbol, shapes=_shapes(params.get("shapes"), str(path)))

    return build


def _shapes(given: object, text: str) -> dict[str, tuple[int, ...]]:
    wanted = "write shapes={'data': [3, 224, 224]}, without the batch axis"
    if given is None:
        raise UsageError(f"{text} does not say how large its inputs are; {wanted}")
    if not isinstance(given, dict) or not given:
        raise UsageError(
            f"shapes is a dictionary from the name of an input to the shape of one sample, got {given!r}"
        )
    shapes = {}
    for name, shape in given.items():
        if not isinstance(shape, list | tuple) or not all(type(extent) is int and extent > 0 for extent in shape):
            raise UsageError(f"the shape of {name!r} is {shape!r}; {wanted}")
        shapes[str(name)] = tuple(shape)
    return shapes


def _function(function: Function, text: str) -> Maker:
    module = _module_of(function, text)
    make = getattr(module, function.name, None)
    if not callable(make):
        raise WorkloadError(f"{text}: {function.source} has no function {function.name!r}")

    def build(params: dict[str, Any]) -> Network:
        result = make(**params)
        network, shapes = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(network, mxnet.gluon.HybridBlock | mxnet.sym.Symbol) or shapes is None:
            raise WorkloadError(
                f"{text} must return a HybridBlock or a Symbol and the shapes of its inputs, such as "
                f"(net, {{'data': (3, 224, 224)}}); it returned {type(result).__name__}"
            )
        is_symbol = isinstance(network, mxnet.sym.Symbol)
        return Network(
            block=None if is_symbol else network,
            symbol=network if is_symbol else None,
            shapes=_shapes(shapes, text),
        )

    return build


def _module_of(function: Function, text: str) -> Any:
    path = function.path
    if path is None:
        sys.path.insert(0, "")
        try:
            return importlib.import_module(function.source)
        except ModuleNotFoundError as error:
            raise WorkloadError(f"the module of {text!r} cannot be imported: {error}") from error
    if not path.is_file():
        raise WorkloadError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _first_line(error: Exception) -> str:
    """MXNet's errors begin with a stack of its own; the reason is the line that says ``Error in`` or the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Error" in line or "Check failed" in line), lines[-1] if lines else "")
