"""From what a workload's ``build`` returns to one training step, traced as a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from dnnmem_tune.errors import UnsupportedError, WorkloadError
from dnnmem_tune.frontends.tensorflow.weightless import IS_RANDOM, as_on_a_gpu
from dnnmem_tune.ir.trace import Category

_RETURNS = (
    "build must return a compiled Keras model or a function that runs one training step, and the "
    "specification of its inputs: return model, (tf.TensorSpec(...), tf.TensorSpec(...))"
)


_DRAWS = 2
"""A random value is drawn, multiplied and shifted, each into a buffer of its own; the last becomes the variable's.

Source: ``keras/src/backend/tensorflow/random.py``; seen in the allocator's log of TensorFlow 2.21.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable of the job."""

    name: str
    """Path of its layer and its own name."""

    nbytes: int
    category: Category

    num_draws: int = 0
    """Buffers of its size from which its first value is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One training step as a graph."""

    function: Any
    """The ``ConcreteFunction``."""

    variables: tuple[Variable, ...]
    """All variables that live on the GPU while the job runs, in the order in which they are made."""

    optimizer_scope: str
    """First part of the names of the optimizer's operators; empty where that is not known."""

    notes: tuple[str, ...]
    """What a reader should know."""


def trace_step(build: Callable[..., Any], batch_size: int, params: dict[str, Any]) -> TracedStep:
    """Build a workload and trace one of its steps; nothing is run.

    Raises:
        WorkloadError: If ``build`` returns something else, or a model that is not compiled.
        UnsupportedError: If the step uses what cannot be traced.

    """
    if tf.config.list_physical_devices("GPU"):
        raise UnsupportedError("the worker sees a GPU; TensorFlow is traced where CUDA_VISIBLE_DEVICES is empty")
    with as_on_a_gpu():
        built = build(batch_size, **params)
        if not isinstance(built, tuple) or len(built) != 2:
            raise WorkloadError(f"{_RETURNS}; it returned {_describe(built)}")
        subject, specs = built
        if isinstance(subject, keras.Model):
            return _trace_model(subject, specs)
        if callable(subject):
            return _trace_function(subject, specs)
    raise WorkloadError(f"{_RETURNS}; it returned {_describe(subject)} first")


def _trace_model(model: keras.Model, specs: Any) -> TracedStep:
    if not model.compiled:
        raise WorkloadError("the model is not compiled; call model.compile(optimizer=..., loss=...) in build")
    if getattr(model, "distribute_strategy", None) and model.distribute_strategy.num_replicas_in_sync > 1:
        raise UnsupportedError("the model is distributed over several devices; build it for one of them")
    if not isinstance(specs, tuple) or len(specs) not in (2, 3):
        raise WorkloadError(
            "a model's inputs are (inputs, targets) or (inputs, targets, sample weights), each a tf.TensorSpec "
            f"or a structure of them; got {_describe(specs)}"
        )
    specs = _checked(specs)
    if not model.built:
        model.build(tf.nest.map_structure(lambda spec: tuple(spec.shape), specs[0]))
    if model.optimizer is not None:
        model.optimizer.build(model.trainable_variables)

    def train_step(*batch: Any) -> Any:
        return model.train_step(batch)

    train_step.__name__ = "train_step"
    function = _concrete(train_step, specs)
    trainable = {id(variable) for variable in model.trainable_variables}
    optimizer = list(model.optimizer.variables) if model.optimizer is not None else []
    own = {id(variable) for variable in optimizer}
    variables = [variable for variable in model.variables if id(variable) not in own]
    known = tuple(
        _variable(variable, Category.WEIGHT if id(variable) in trainable else Category.BUFFER)
        for variable in variables
    ) + tuple(_variable(variable, Category.OPTIMIZER_STATE) for variable in optimizer)
    return TracedStep(
        function=function,
        variables=known,
        optimizer_scope=model.optimizer.name if model.optimizer is not None else "",
        notes=_xla_notes(model),
    )


def _trace_function(step: Callable[..., Any], specs: Any) -> TracedStep:
    specs = _checked(specs if isinstance(specs, tuple) else (specs,))
    function = _concrete(step, specs)
    variables = []
    for external, _ in function.graph.captures:
        if external.dtype == tf.resource and external._handle_data is not None:
            (shape_and_type, *_rest) = external._handle_data.shape_and_type or [None]
            if shape_and_type is not None:
                shape = tf.TensorShape(shape_and_type.shape)
                nbytes = (shape.num_elements() or 0) * tf.as_dtype(shape_and_type.dtype).size
                variables.append(Variable(name="variable", nbytes=nbytes, category=Category.WEIGHT))
    return TracedStep(function=function, variables=tuple(variables), optimizer_scope="", notes=())


def _concrete(step: Callable[..., Any], specs: tuple[Any, ...]) -> Any:
    traced = step if hasattr(step, "get_concrete_function") else tf.function(step, autograph=False)
    return traced.get_concrete_function(*specs)


def _checked(specs: tuple[Any, ...]) -> tuple[Any, ...]:
    for spec in tf.nest.flatten(specs):
        if not isinstance(spec, tf.TensorSpec):
            raise WorkloadError(f"an input is described by a tf.TensorSpec, got {_describe(spec)}")
        if not spec.shape.is_fully_defined():
            raise WorkloadError(
                f"the input {spec.name or spec} has a shape that is not known, {spec.shape}; "
                "give every extent, the batch size among them"
            )
        if spec.dtype == tf.string:
            raise UnsupportedError(
                f"the input {spec.name or spec} holds strings, which do not live on a GPU; "
                "give what the text becomes, such as token numbers"
            )
    return specs


def _variable(variable: Any, category: Category) -> Variable:
    shape = tf.TensorShape(variable.shape)
    return Variable(
        name=variable.path,
        nbytes=(shape.num_elements() or 0) * tf.as_dtype(variable.dtype).size,
        category=category,
        num_draws=_DRAWS if getattr(variable, IS_RANDOM, False) else 0,
    )


def _xla_notes(model: keras.Model) -> tuple[str, ...]:
    if not model.jit_compile:
        return ("The step is estimated as TensorFlow's executor runs it, without XLA.",)
    return (
        "On a GPU Keras compiles this step with XLA (jit_compile is not False); what is estimated is the step as "
        "TensorFlow's executor runs it. Under XLA the peak of three image models was 8 % lower to 45 % higher. "
        "Pass jit_compile=False to model.compile for a job that runs as estimated.",
    )


def _describe(value: Any) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, tuple) else f"a tuple of {len(value)}"
