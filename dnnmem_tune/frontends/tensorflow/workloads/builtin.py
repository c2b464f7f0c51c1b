"""The built-in workloads: DNNMem's five models in Keras, and every model of ``keras.applications``.

Parameter counts equal those of the published implementations. The image models are Keras' own;
the language models have the layers and the heads of the PyTorch ones of the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from dnnmem_tune.errors import UsageError, WorkloadError
from dnnmem_tune.frontends.tensorflow.workloads.names import IMAGE_MODELS, canonical_name
from dnnmem_tune.frontends.tensorflow.workloads.optimizers import make_optimizer, set_precision

Built = tuple[keras.Model, tuple[Any, Any]]
"""A compiled model, and the specifications of its inputs and targets."""


def load_builtin(name: str) -> Callable[..., Built]:
    """Return a built-in workload: ``build(batch_size, **hyperparameters)``.

    Raises:
        WorkloadError: If there is none of that name.

    """
    known = canonical_name(name)
    if known in IMAGE_MODELS:
        return _image_model(*IMAGE_MODELS[known])
    if known == "lstm":
        return lstm
    if known == "bert-base":
        return bert
    raise WorkloadError(f"no built-in TensorFlow workload {name!r}")


def load_application(name: str) -> Callable[..., Built]:
    """Return a model of ``keras.applications`` as a workload, at the image size it was published with.

    Raises:
        WorkloadError: If Keras has none of that name.

    """
    makers = {
        key.lower(): maker
        for key, maker in vars(keras.applications).items()
        if inspect.isfunction(maker) and "classifier_activation" in inspect.signature(maker).parameters
    }
    if name.lower() not in makers:
        raise WorkloadError(f"keras.applications has no {name!r}; it has {', '.join(sorted(makers))}")
    return _image_model(makers[name.lower()].__name__, 0)


def _image_model(maker: str, image_size: int) -> Callable[..., Built]:
    def build(
        batch_size: int,
        *,
        image_size: int = image_size,
        num_classes: int = 1000,
        optimizer: str = "sgd(momentum=0.9)",
        precision: str = "fp32",
    ) -> Built:
        set_precision(precision)
        shape = {"input_shape": (image_size, image_size, 3)} if image_size else {}
        model = getattr(keras.applications, maker)(
            weights=None, classes=num_classes, classifier_activation=None, **shape
        )
        return _classifier(model, optimizer), (
            tf.TensorSpec((batch_size, *model.input_shape[1:]), tf.float32),
            tf.TensorSpec((batch_size,), tf.int32),
        )

    return build


def lstm(
    batch_size: int,
    *,
    seq_len: int = 35,
    vocab_size: int = 33278,
    embedding_size: int = 650,
    hidden_size: int = 650,
    depth: int = 2,
    dropout: float = 0.5,
    tied: bool = True,
    optimizer: str = "sgd(lr=20.0)",
    precision: str = "fp32",
) -> Built:
    """Build a word-level language model: embedding, LSTM layers, and a decoder tied to the embedding.

    Source: ``pytorch/examples/word_language_model`` at its medium size for WikiText-2.

    Raises:
        UsageError: If the weights are tied and the two sizes differ.

    """
    if tied and embedding_size != hidden_size:
        raise UsageError(
            f"lstm: tied weights need hidden_size={hidden_size} equal to embedding_size={embedding_size}; "
            "set both, or tied=false"
        )
    set_precision(precision)
    words = keras.Input((seq_len,), batch_size=batch_size, dtype="int32")
    embedding = layers.Embedding(vocab_size, embedding_size)
    hidden = layers.Dropout(dropout)(embedding(words))
    for _ in range(depth):
        hidden = layers.Dropout(dropout)(layers.LSTM(hidden_size, return_sequences=True)(hidden))
    decoder = TiedDecoder(embedding) if tied else layers.Dense(vocab_size)
    model = keras.Model(words, decoder(hidden))
    return _classifier(model, optimizer), _tokens(batch_size, seq_len)


def bert(
    batch_size: int,
    *,
    seq_len: int = 128,
    vocab_size: int = 30522,
    hidden_size: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    intermediate_size: int = 3072,
    max_positions: int = 512,
    dropout: float = 0.1,
    optimizer: str = "adamw",
    precision: str = "fp32",
) -> Built:
    """Build BERT for masked-language modelling: a word for every position, decoder tied to the embedding.

    Source: Devlin et al., 2019; ``google-research/bert``, base size: 110 million parameters.
    """
    set_precision(precision)
    words = keras.Input((seq_len,), batch_size=batch_size, dtype="int32")
    embedding = layers.Embedding(vocab_size, hidden_size)
    hidden = Positions(max_positions)(embedding(words))
    hidden = layers.Dropout(dropout)(layers.LayerNormalization(epsilon=1e-12)(hidden))
    for _ in range(depth):
        attended = layers.MultiHeadAttention(num_heads, hidden_size // num_heads, dropout=dropout)(hidden, hidden)
        hidden = layers.LayerNormalization(epsilon=1e-12)(hidden + layers.Dropout(dropout)(attended))
        inner = layers.Dense(hidden_size)(layers.Dense(intermediate_size, activation="gelu")(hidden))
        hidden = layers.LayerNormalization(epsilon=1e-12)(hidden + layers.Dropout(dropout)(inner))
    hidden = layers.LayerNormalization(epsilon=1e-12)(layers.Dense(hidden_size, activation="gelu")(hidden))
    model = keras.Model(words, TiedDecoder(embedding)(hidden))
    return _classifier(model, optimizer), _tokens(batch_size, seq_len)


class Positions(layers.Layer):
    """Adds what was learned for each position, and for the first of two segments."""

    def __init__(self, max_positions: int) -> None:
        super().__init__()
        self._max_positions = max_positions

    def build(self, shape: tuple[int, ...]) -> None:
        self.positions = self.add_weight(shape=(self._max_positions, shape[-1]), name="positions")
        self.segments = self.add_weight(shape=(2, shape[-1]), name="segments")

    def call(self, hidden: Any) -> Any:
        return hidden + self.positions[: hidden.shape[1]] + self.segments[0]


class TiedDecoder(layers.Layer):
    """Scores every word with the embedding's own weights."""

    def __init__(self, embedding: layers.Embedding) -> None:
        super().__init__()
        self._embedding = embedding

    def build(self, _shape: tuple[int, ...]) -> None:
        self.bias = self.add_weight(shape=(self._embedding.input_dim,), initializer="zeros", name="bias")

    def call(self, hidden: Any) -> Any:
        words = ops.cast(self._embedding.embeddings, hidden.dtype)
        return ops.matmul(hidden, ops.transpose(words)) + ops.cast(self.bias, hidden.dtype)


def _classifier(model: keras.Model, optimizer: str) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Without XLA, since what XLA makes of a step for a GPU cannot be known without its compiler for that GPU.
    model.compile(optimizer=make_optimizer(optimizer), loss=loss, jit_compile=False)
    return model


def _tokens(batch_size: int, seq_len: int) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    return tf.TensorSpec((batch_size, seq_len), tf.int32), tf.TensorSpec((batch_size, seq_len), tf.int32)
