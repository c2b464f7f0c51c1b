"""Workloads that tests send to a TensorFlow worker."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def dense(batch_size: int, *, width: int = 1000, jit: Any = False) -> Any:
    """Return a compiled model of one layer."""
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width, use_bias=False)])
    model.compile("sgd", "mse", jit_compile=jit)
    spec = tf.TensorSpec((batch_size, width), tf.float32)
    return model, (spec, spec)


def custom(batch_size: int) -> Any:
    """Return a step of our own that recomputes its activations."""
    weight = tf.Variable(tf.zeros((1000, 1000)))

    @tf.recompute_grad
    def block(data: Any) -> Any:
        return tf.nn.relu(tf.nn.relu(data @ weight) @ weight)

    def step(data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(block(data)))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return step, tf.TensorSpec((batch_size, 1000))


def loop(batch_size: int, *, seq_len: int = 20) -> Any:
    """Return a recurrent model that cuDNN cannot run."""
    words = keras.Input((seq_len,), dtype="int32")
    hidden = keras.layers.GRU(256, recurrent_dropout=0.2)(keras.layers.Embedding(100, 256)(words))
    model = keras.Model(words, keras.layers.Dense(5)(hidden))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model, (tf.TensorSpec((batch_size, seq_len), tf.int32), tf.TensorSpec((batch_size,), tf.int32))


def uncompiled(_batch_size: int) -> Any:
    """Return a model without a loss."""
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]), (
        tf.TensorSpec((1, 4)),
        tf.TensorSpec((1, 4)),
    )


def unknown_shape(batch_size: int) -> Any:
    """Return inputs with an extent that is not known."""
    model, _ = dense(batch_size, width=4)
    return model, (tf.TensorSpec((batch_size, None)), tf.TensorSpec((batch_size, 4)))


def strings(batch_size: int) -> Any:
    """Return inputs that no GPU holds."""
    return (lambda text: tf.strings.length(text)), tf.TensorSpec((batch_size,), tf.string)


def nothing(_batch_size: int) -> Any:
    """Return no workload."""
    return 5
