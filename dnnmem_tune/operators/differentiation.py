"""What each operator keeps for the backward pass: DNNMem's Table 3, one rule per operator.

Operators have the names of ONNX. For each input that can have a gradient a rule says which
tensors computing it takes: ``x0`` is the first input, ``y0`` the first output. A tensor is kept
only if a gradient that takes it is wanted: the product of an activation and a constant keeps nothing.

Source:
    The derivatives are mathematics; which of two ways a framework takes is from PyTorch's
    ``tools/autograd/derivatives.yaml`` and TensorFlow's ``python/ops/*_grad.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL = -1
"""Stands for every input, of operators that take any number."""

PYTORCH, TENSORFLOW, ORT = "pytorch", "tensorflow", "ort"

TARGETS = (PYTORCH, TENSORFLOW, ORT)
"""Whose way of training is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRule:
    """How an operator is differentiated."""

    gradients: Mapping[int, tuple[str, ...]]
    """Input -> the tensors that its gradient takes besides that of the output.

    One that only some targets take has the target before it, as in ``pytorch:x0``.
    """

    learns: tuple[int, ...] = ()
    """Inputs that are trained where they are weights of the model."""

    views: frozenset[str] = frozenset()
    """Targets in which the output shares the input's memory."""

    passes: bool = False
    """Whether the gradient of an input of the output's shape is the output's gradient itself."""

    in_place: bool = False
    """Whether graph executors may compute output, and gradient, in the place of what they read."""

    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    """Target -> bytes kept for each element of the output besides: masks, indices, intermediate results."""

    temporaries: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Target -> tensors of the output's size that forward and backward take for a moment."""


_RULES: dict[str, GradientRule] = {}

_EVERYWHERE = frozenset(TARGETS)
_IN_PYTORCH = frozenset({PYTORCH})


def gradient_rule(operator: str) -> GradientRule | None:
    """Return the rule of an operator; None where there is none.

    Example:
        >>> gradient_rule("Relu").gradients
        {0: ('y0',)}

    """
    return _RULES.get(operator)


def known_operators() -> tuple[str, ...]:
    """Return the operators that have a rule, in alphabetical order."""
    return tuple(sorted(_RULES))


def register_rule(operators: str, rule: GradientRule) -> None:
    """Add a rule for one or several operators, with spaces between them.

    Raises:
        ValueError: If one has a rule already; two rules for one operator are always a mistake.

    """
    for operator in operators.split():
        if operator in _RULES:
            raise ValueError(f"operator {operator!r} has a rule already")
        _RULES[operator] = rule


def _register_all() -> None:
    _register_products()
    _register_elementwise()
    _register_normalisation()
    _register_pooling()
    _register_movement()
    _register_reductions()
    _register_without_gradient()


def _register_products() -> None:
    """Convolutions, matrix products and recurrent layers keep input and weight."""
    weighted = GradientRule(gradients={0: ("x1",), 1: ("x0",), 2: ()}, learns=(1, 2))
    register_rule("Conv ConvTranspose com.microsoft.FusedConv Gemm", weighted)
    register_rule(
        "MatMul com.microsoft.FusedMatMul", GradientRule(gradients={0: ("x1",), 1: ("x0",)}, learns=(0, 1))
    )
    register_rule("Einsum", GradientRule(gradients={0: ("x1",), 1: ("x0",)}, learns=(0, 1)))
    register_rule(
        "DeformConv",
        GradientRule(gradients={0: ("x1", "x2"), 1: ("x0", "x2"), 2: ("x0", "x1"), 3: ()}, learns=(1, 3)),
    )
    # cuDNN's reserve holds the gates; four of them in an LSTM, and the cell state.
    recurrent = {0: ("x0", "y0", "x1"), 1: ("x0", "y0"), 2: ("x0", "y0"), 3: (), 5: (), 6: ()}
    for operator, gates in (("LSTM", 5), ("GRU", 4), ("RNN", 1)):
        kept = dict.fromkeys(TARGETS, 4 * gates)
        register_rule(operator, GradientRule(gradients=recurrent, learns=(1, 2, 3), kept_bytes=kept))
    # The fused kernel of scaled dot products keeps its inputs, its output and one number per row.
    attention = {0: ("x1", "x2", "y0"), 1: ("x0", "x2", "y0"), 2: ("x0", "x1", "y0")}
    register_rule("Attention com.microsoft.MultiHeadAttention", GradientRule(gradients=attention))


def _register_elementwise() -> None:
    of_output = GradientRule(gradients={0: ("y0",)}, in_place=True)
    register_rule("Relu Sigmoid Tanh Exp Sqrt Reciprocal Softmax LogSoftmax Hardmax", of_output)
    of_input = GradientRule(gradients={0: ("x0",)}, in_place=True)
    register_rule(
        "LeakyRelu Elu Selu Celu ThresholdedRelu HardSigmoid HardSwish Mish Softplus Softsign Gelu Swish Clip Abs "
        "Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh com.microsoft.Gelu com.microsoft.FastGelu "
        "com.microsoft.QuickGelu",
        of_input,
    )
    register_rule(
        "com.microsoft.BiasGelu", GradientRule(gradients={0: ("x0", "x1"), 1: ("x0", "x1")}, learns=(1,))
    )
    register_rule("PRelu", GradientRule(gradients={0: ("x0", "x1"), 1: ("x0",)}, learns=(1,)))
    register_rule("Neg Cast", GradientRule(gradients={0: ()}, in_place=True))
    register_rule("Add Sub", GradientRule(gradients={0: (), 1: ()}, learns=(0, 1), passes=True, in_place=True))
    register_rule("Sum Mean", GradientRule(gradients={ALL: ()}, passes=True, in_place=True))
    register_rule("Mul", GradientRule(gradients={0: ("x1",), 1: ("x0",)}, learns=(0, 1), in_place=True))
    register_rule("Div", GradientRule(gradients={0: ("x1",), 1: ("x0", "x1")}, learns=(0, 1), in_place=True))
    register_rule("Pow", GradientRule(gradients={0: ("x0", "x1"), 1: ("x0", "x1", "y0")}, in_place=True))
    register_rule("Min Max", GradientRule(gradients={0: ("x0", "x1"), 1: ("x0", "x1")}))
    register_rule("Mod", GradientRule(gradients={0: ()}))
    register_rule("Where", GradientRule(gradients={1: ("x0",), 2: ("x0",)}))
    register_rule(
        "Dropout com.microsoft.BiasDropout",
        GradientRule(gradients={0: ()}, in_place=True, kept_bytes={PYTORCH: 1, TENSORFLOW: 1, ORT: 1}),
    )
    register_rule("CumSum", GradientRule(gradients={0: ()}))


def _register_normalisation() -> None:
    scaled = GradientRule(gradients={0: ("x0", "x1"), 1: ("x0",), 2: ()}, learns=(1, 2))
    register_rule("BatchNormalization InstanceNormalization LayerNormalization GroupNormalization", scaled)
    register_rule("RMSNormalization SimplifiedLayerNormalization", scaled)
    register_rule(
        "com.microsoft.SkipLayerNormalization",
        GradientRule(gradients={0: ("x0", "x1", "x2"), 1: (), 2: ("x0",), 3: (), 4: ()}, learns=(2, 3, 4)),
    )
    # PyTorch composes it of seven operators (``torch/nn/functional.py``): the padded square, the sum under
    # the power and the power are kept; the square and the average are not.
    lrn = GradientRule(gradients={0: ("x0", "y0")}, kept_bytes={PYTORCH: 12}, temporaries={PYTORCH: (2, 3)})
    register_rule("LRN", lrn)
    register_rule("MeanVarianceNormalization", GradientRule(gradients={0: ("x0", "y0")}))
    register_rule("LpNormalization", GradientRule(gradients={0: ("x0", "y0")}))


def _register_pooling() -> None:
    # The place of each maximum is a 64-bit number; TensorFlow compares input and output again.
    places = {PYTORCH: 8, ORT: 8}
    takes = ("pytorch:x0", "tensorflow:x0", "tensorflow:y0")
    register_rule("MaxPool", GradientRule(gradients={0: takes}, kept_bytes=places))
    register_rule("AveragePool LpPool", GradientRule(gradients={0: ("x0",)}))
    register_rule("GlobalAveragePool", GradientRule(gradients={0: ()}))
    register_rule("GlobalMaxPool GlobalLpPool", GradientRule(gradients={0: ("x0", "y0")}))
    register_rule("MaxUnpool MaxRoiPool RoiAlign", GradientRule(gradients={0: ("x1",)}))


def _register_movement() -> None:
    register_rule(
        "Reshape Flatten Squeeze Unsqueeze Identity",
        GradientRule(gradients={0: ()}, views=_EVERYWHERE, passes=True),
    )
    register_rule("Transpose", GradientRule(gradients={0: ()}, views=_IN_PYTORCH, passes=True))
    register_rule("Slice Split Expand", GradientRule(gradients={0: ()}, views=_IN_PYTORCH))
    register_rule("Concat", GradientRule(gradients={ALL: ()}))
    register_rule("Gather GatherElements GatherND", GradientRule(gradients={0: ("x1",)}, learns=(0,)))
    register_rule("ScatterElements ScatterND Scatter", GradientRule(gradients={0: ("x1",), 2: ("x1",)}))
    register_rule("TopK Compress", GradientRule(gradients={0: ("y1",)}))
    register_rule(
        "Pad Tile DepthToSpace SpaceToDepth Resize Upsample ReverseSequence Trilu", GradientRule(gradients={0: ()})
    )
    register_rule("GridSample", GradientRule(gradients={0: ("x0", "x1"), 1: ("x0", "x1")}))
    register_rule("LoopStack", GradientRule(gradients={0: ()}))


def _register_reductions() -> None:
    register_rule("ReduceSum ReduceMean", GradientRule(gradients={0: ()}))
    register_rule("ReduceSumSquare ReduceLogSum", GradientRule(gradients={0: ("x0",)}))
    register_rule(
        "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSumExp",
        GradientRule(gradients={0: ("x0", "y0")}),
    )
    register_rule("SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss", GradientRule(gradients={0: ("x0", "x1")}))


def _register_without_gradient() -> None:
    """Results are whole numbers, or do not change with the input."""
    register_rule(
        "ArgMax ArgMin And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf NonZero Shape "
        "Size "
        "NonMaxSuppression Unique OneHot Range ConstantOfShape Constant EyeLike RandomNormal RandomUniform "
        "RandomNormalLike RandomUniformLike Multinomial Bernoulli Sign Floor Ceil Round BitShift "
        "QuantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul MatMulInteger ConvInteger",
        GradientRule(gradients={}),
    )
    # Fake quantisation passes gradients straight through.
    register_rule("DequantizeLinear", GradientRule(gradients={0: ()}))


_register_all()
