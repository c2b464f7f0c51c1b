"""Building Keras models for a GPU that is not there, without memory for their weights."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import core
from keras.src.trainers import trainer
from tensorflow.python.ops import resource_variable_ops

_FEWEST_ELEMENTS = 4096
"""Variables below this keep their values: counters, seeds, scales, which Python code may read."""

IS_RANDOM = "_dnnmem_is_random"
"""Attribute of a Keras variable: whether its first value is drawn."""


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let Keras make large variables without values, and take the kernels that it takes on a GPU.

    Keras asks ``_is_gpu_available`` whether cuDNN runs its LSTM and GRU layers, and whether there is a GPU
    before it chooses XLA; nothing is run here.

    Source: ``keras/src/backend/tensorflow/{core,rnn}.py`` and ``trainers/trainer.py`` of Keras 3.15.
    """
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    with (
        mock.patch.object(core.Variable, "_initialize_with_initializer", _without_value(core.Variable)),
        mock.patch.object(trainer.Trainer, "_resolve_auto_jit_compile", trainer.model_supports_jit),
        mock.patch.object(rnn, "_is_gpu_available", return_value=True),
    ):
        yield


def _without_value(variable: Any) -> Any:
    with_value = variable._initialize_with_initializer

    def initialize(self: Any, initializer: Any) -> None:
        setattr(self, IS_RANDOM, isinstance(initializer, keras.initializers.RandomNormal.__base__))
        if math.prod(self._shape) < _FEWEST_ELEMENTS:
            with_value(self, initializer)
            return
        self._value = resource_variable_ops.UninitializedVariable(
            trainable=self.trainable,
            shape=tf.TensorShape(self._shape),
            dtype=tf.as_dtype(self._dtype),
            name=self.name,
        )

    return initialize
