"""Networks that Gluon's model zoo lacks: the paper's LSTM and BERT.

Source: sizes of the medium word-language model of Zaremba et al., 2014 (650 units, two layers),
here as a classifier of the last position, and of BERT-base (Devlin et al., 2018) with a
classifier on the first position.
"""

from __future__ import annotations

from typing import Any

from mxnet import gluon


class LSTMClassifier(gluon.HybridBlock):
    """Embedding, LSTM layers, and a class for the last position."""

    def __init__(self, vocab_size: int, hidden_size: int, depth: int, classes: int) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = gluon.nn.Embedding(vocab_size, hidden_size)
            self.lstm = gluon.rnn.LSTM(hidden_size, depth, layout="NTC", input_size=hidden_size)
            self.decoder = gluon.nn.Dense(classes)

    def hybrid_forward(self, F: Any, tokens: Any) -> Any:
        """Return the scores of the classes."""
        states = self.lstm(self.embedding(tokens))
        return self.decoder(F.slice_axis(states, axis=1, begin=-1, end=None))


class EncoderLayer(gluon.HybridBlock):
    """Self-attention and a feed-forward network, each normalised after its residual."""

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int, dropout: float) -> None:
        super().__init__()
        self._num_heads = num_heads
        self._scale = (hidden_size // num_heads) ** -0.5
        dense, norm = gluon.nn.Dense, gluon.nn.LayerNorm
        with self.name_scope():
            self.projections = dense(3 * hidden_size, flatten=False, in_units=hidden_size)
            self.output = dense(hidden_size, flatten=False, in_units=hidden_size)
            self.attention_norm = norm(in_channels=hidden_size)
            self.intermediate = dense(intermediate_size, flatten=False, in_units=hidden_size)
            self.activation = gluon.nn.GELU()
            self.reduction = dense(hidden_size, flatten=False, in_units=intermediate_size)
            self.norm = norm(in_channels=hidden_size)
            self.dropout = gluon.nn.Dropout(dropout)

    def hybrid_forward(self, F: Any, hidden: Any) -> Any:
        """Return the next hidden states; axes are (batch, position, unit)."""
        query, key, value = (self._split_heads(F, part) for part in F.split(self.projections(hidden), 3, axis=-1))
        weights = self.dropout(F.softmax(F.batch_dot(query, key, transpose_b=True) * self._scale))
        attended = F.reshape(F.batch_dot(weights, value), (-4, -1, self._num_heads, 0, 0))
        attended = F.reshape(F.transpose(attended, (0, 2, 1, 3)), (0, 0, -3))
        hidden = self.attention_norm(hidden + self.dropout(self.output(attended)))
        return self.norm(hidden + self.dropout(self.reduction(self.activation(self.intermediate(hidden)))))

    def _split_heads(self, F: Any, states: Any) -> Any:
        states = F.reshape(states, (0, 0, self._num_heads, -1))
        return F.reshape(F.transpose(states, (0, 2, 1, 3)), (-3, 0, 0))


class BertClassifier(gluon.HybridBlock):
    """Embeddings, encoder layers, and a class for the first position."""

    def __init__(
        self,
        vocab_size: int,
        seq_len: int,
        hidden_size: int,
        depth: int,
        num_heads: int,
        intermediate_size: int,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        with self.name_scope():
            self.words = gluon.nn.Embedding(vocab_size, hidden_size)
            self.positions = self.params.get("positions", shape=(1, seq_len, hidden_size))
            self.norm = gluon.nn.LayerNorm(in_channels=hidden_size)
            self.dropout = gluon.nn.Dropout(dropout)
            self.layers = gluon.nn.HybridSequential()
            for _ in range(depth):
                self.layers.add(EncoderLayer(hidden_size, num_heads, intermediate_size, dropout))
            self.pooler = gluon.nn.Dense(hidden_size, activation="tanh")
            self.decoder = gluon.nn.Dense(classes)

    def hybrid_forward(self, F: Any, tokens: Any, positions: Any) -> Any:
        """Return the scores of the classes."""
        hidden = self.dropout(self.norm(F.broadcast_add(self.words(tokens), positions)))
        hidden = self.layers(hidden)
        return self.decoder(self.pooler(F.slice_axis(hidden, axis=1, begin=0, end=1)))


def lstm(
    *, seq_len: int = 100, vocab_size: int = 10000, hidden_size: int = 650, depth: int = 2, classes: int = 10
) -> tuple[gluon.HybridBlock, tuple[int, ...]]:
    """Return the LSTM and the shape of one sample."""
    return LSTMClassifier(vocab_size, hidden_size, depth, classes), (seq_len,)


def bert_base(
    *,
    seq_len: int = 128,
    vocab_size: int = 30522,
    hidden_size: int = 768,
    depth: int = 12,
    num_heads: int = 12,
    intermediate_size: int = 3072,
    dropout: float = 0.1,
    classes: int = 2,
) -> tuple[gluon.HybridBlock, tuple[int, ...]]:
    """Return BERT and the shape of one sample."""
    network = BertClassifier(
        vocab_size, seq_len, hidden_size, depth, num_heads, intermediate_size, dropout, classes
    )
    return network, (seq_len,)


NETWORKS = {"lstm": lstm, "bert_base": bert_base}
