"""The workspace of cuDNN's convolutions, as three named models.

cuDNN chooses an algorithm for each forward, data-gradient and filter-gradient convolution
on the card, by heuristics or, with ``torch.backends.cudnn.benchmark``, by trying them, and
each algorithm states its own workspace. Without the card the choice is not known, so it is
an assumption that the user picks and that every estimate names:

``none``
    Algorithms without workspace. What is left when memory is short, since PyTorch goes on to
    the next algorithm when a workspace does not fit; so it gives the largest batch that runs,
    and usually a lower end of the peak.

``limited``
    What cuDNN's heuristics usually take. In single precision and contiguous layout:
    non-fused Winograd for ungrouped 3 x 3 convolutions of stride 1, but for the forward and
    the data gradient of narrow ones (up to 64 x 64 channels) the implicit product, which
    takes next to none; nothing else of weight. In half precision and contiguous layout: the
    tensor-core kernels work on channels-last data, so input, output and weight are converted
    in the workspace. In channels-last layout: nothing.

``benchmark``
    The largest workspace among the algorithms that are tried: the above and the tiled
    Fourier transform, for ungrouped convolutions of stride 1. An upper end: it is taken in
    the first step only, and only where it fits.

Source:
    Winograd: planes of transformed 6 x 6 tiles that give 4 x 4 outputs, of input, output and
    weight. In the Kineto sample of ResNet-50 (fp32, batch 32, V100; pytorch/kineto
    ``tb_plugin/samples``) the workspaces of the 3 x 3 convolutions of stride 1 are this to
    the byte at 14 x 14 (47,185,920) and 7 x 7 (56,623,104) in all three directions and for
    the filter gradient of 64 channels at 56 x 56 (116,195,328), and 1 % more at 28 x 28
    (60,817,408); forward and data gradient of the 64 channels took 0.4 MB instead.
    It is 2.25 times input plus output where 4 divides the extents. On an A100 (fp32, 224
    pixels, batch 32 to 128) 2 to 4 % of the measured peak of ResNet-50 and 9 to 24 % of
    VGG-16's are missing without workspaces; with this model ResNet-50 is within 1 %, and
    VGG-16 5 to 18 % too high. Reserved memory moves by more than the workspace itself, up
    or down, since a workspace decides which cached blocks are split.
    Fourier transform: 32 x 17 complex numbers for each tile of 32 x 32 and plane; the sizes
    that NVIDIA's ``mnistCUDNN`` prints for algorithm 5 (178,432 and 4,656,640 bytes) are this
    to the byte. Conversion: cuDNN's ``nchwToNhwcKernel`` and ``nhwcToNchwKernel`` around
    half-precision convolutions; no measured size was at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

from dnnmem_tune.errors import UsageError
from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

RULE = "convolution"
"""Name under which traces refer to the rule."""

MODELS = ("none", "limited", "benchmark")
"""The models, from the smallest workspace to the largest."""

CHANNELS_LAST = "channels_last"
"""Second word of the tag when data lies channels last."""

_WINOGRAD_TILE = 4
_WINOGRAD_PLANES = 36
_NARROW_KERNELS = 64 * 64
"""Input times output channels up to which forward and data gradient take another algorithm."""
_FOURIER_TILE = 32
_FOURIER_TILE_BYTES = 32 * 17 * 8


class Direction(IntEnum):
    """Which of the three convolutions of a layer."""

    FORWARD = 0
    DATA_GRADIENT = 1
    FILTER_GRADIENT = 2


def convolution_scratch(
    direction: Direction,
    *,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    output_shape: Sequence[int],
    stride: Sequence[int],
    groups: int,
    dtype: str,
    itemsize: int,
    channels_last: bool = False,
) -> Scratch:
    """Return what a trace records for the workspace of one convolution.

    Args:
        direction: Which of the layer's three convolutions.
        input_shape: Of the layer's input: batch, channels, extents.
        weight_shape: Of the layer's weight: output channels, input channels of a group, extents.
        output_shape: Of the layer's output.
        stride: One number per extent.
        groups: Of the layer.
        dtype: Name of the type it computes in, such as ``float16``.
        itemsize: Bytes of one element.
        channels_last: Whether data lies channels last.

    """
    numbers = (
        math.prod(input_shape),
        math.prod(output_shape),
        math.prod(weight_shape),
        groups,
        math.prod(weight_shape[2:]),
        itemsize,
        int(direction),
        math.prod(stride),
        *input_shape[2:],
        *output_shape[2:],
    )
    tag = f"{dtype} {CHANNELS_LAST}" if channels_last else dtype
    return Scratch(RULE, tuple(Polynomial(number) for number in numbers), tag)


@scratch_rule(RULE)
def convolution_workspace(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Return the bytes of workspace that a convolution asks for.

    Args:
        arguments: Elements of input, output and weight; groups; elements of one kernel; bytes of
            one element; ``Direction``; product of the strides; extents of input, then of output.
        tag: Type, and ``channels_last`` after a space where data lies so.
        target: Names the model.

    Raises:
        UsageError: If there is no model of the target's name.

    """
    model = target.conv_workspace
    if model not in MODELS:
        raise UsageError(f"there is no convolution workspace model {model!r}; choose one of {', '.join(MODELS)}")
    groups = arguments[3]
    if model == "none" or groups != 1:
        return 0
    dtype, _, layout = tag.partition(" ")
    if layout == CHANNELS_LAST:
        limited = 0
    elif dtype == "float32" and not _is_narrow(arguments):
        limited = _winograd_bytes(arguments)
    elif dtype in ("float16", "bfloat16"):
        limited = _conversion_bytes(arguments)
    else:
        limited = 0
    if model == "limited":
        return limited
    winograd = _winograd_bytes(arguments) if dtype == "float32" and layout != CHANNELS_LAST else 0
    return max(limited, winograd, _fourier_bytes(arguments))


def _is_narrow(arguments: Sequence[int]) -> bool:
    weight_elements, _, kernel_elements, _, direction = arguments[2:7]
    return direction != Direction.FILTER_GRADIENT and weight_elements // kernel_elements <= _NARROW_KERNELS


def _conversion_bytes(arguments: Sequence[int]) -> int:
    input_elements, output_elements, weight_elements, _, _, itemsize = arguments[:6]
    return (input_elements + output_elements + weight_elements) * itemsize


def _winograd_bytes(arguments: Sequence[int]) -> int:
    """Two-dimensional 3 x 3 of stride 1 only; the transformed numbers are in single precision."""
    kernel_elements, strides, extents = arguments[4], arguments[7], arguments[8:]
    if kernel_elements != 9 or strides != 1 or len(extents) != 4:
        return 0
    tiles = math.prod(-(-extent // _WINOGRAD_TILE) for extent in extents[2:])
    return _WINOGRAD_PLANES * 4 * _transformed_elements(arguments, tiles)


def _fourier_bytes(arguments: Sequence[int]) -> int:
    """Stride 1 only, two-dimensional, kernels below a tile; tiles overlap by the kernel."""
    input_elements, kernel_elements, strides, extents = arguments[0], arguments[4], arguments[7], arguments[8:]
    if kernel_elements == 1 or strides != 1 or len(extents) != 4 or not input_elements:
        return 0
    # The extents of the kernel are not recorded; a square one decides how far tiles overlap.
    step = _FOURIER_TILE - math.isqrt(kernel_elements) + 1
    if step <= 0:
        return 0
    tiles = math.prod(max(1, -(-extent // step)) for extent in extents[2:])
    return _FOURIER_TILE_BYTES * _transformed_elements(arguments, tiles)


def _transformed_elements(arguments: Sequence[int], tiles: int) -> int:
    """Return the tiles of all planes of input and output, and one per kernel."""
    input_elements, output_elements, weight_elements, _, kernel_elements = arguments[:5]
    extents = arguments[8:]
    planes = input_elements // math.prod(extents[:2]) + output_elements // math.prod(extents[2:])
    return tiles * planes + weight_elements // kernel_elements
