"""What the name of a TensorFlow operator says: the layer it belongs to and the part of the step."""

from __future__ import annotations

import re

from dnnmem_tune.ir.trace import Phase

_GRAPPLER = re.compile(r"^(?:[A-Z]\w*(?:Optimizer|Folding|Remapper)\w*/)+|^ConstantFolding/|^Func/")
_GRADIENT = "gradient_tape/"


class Naming:
    """Reads operators' names.

    Args:
        optimizer_scope: First part of the names of the optimizer's operators; empty where it is not known.

    """

    def __init__(self, optimizer_scope: str) -> None:
        self._optimizer = re.compile(rf"{re.escape(optimizer_scope)}(_\d+)?/" if optimizer_scope else r"(?!)")

    def phase(self, name: str) -> Phase:
        """Return the part of the step.

        Example:
            >>> Naming("adam").phase("gradient_tape/vgg16/block1_conv1/Conv2DBackpropFilter")
            <Phase.BACKWARD: 'backward'>

        """
        plain = _GRAPPLER.sub("", name)
        if plain.startswith(_GRADIENT):
            return Phase.BACKWARD
        return Phase.OPTIMIZER if self._optimizer.match(plain) else Phase.FORWARD

    def module(self, name: str) -> str:
        """Return the path of the layer, without the operator's own name.

        Example:
            >>> Naming("adam").module("gradient_tape/vgg16_1/block1_conv1_1/Conv2DBackpropFilter")
            'vgg16/block1_conv1'

        """
        plain = _GRAPPLER.sub("", name).removeprefix(_GRADIENT)
        scope, _, _own = plain.rpartition("/")
        return "/".join(part.removesuffix("_1") for part in scope.split("/"))
