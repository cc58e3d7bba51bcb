"""From a model's facts to the operations that compute it.

The forward pass written a second time, for the machine instead of for the reader: norms are joined with
quantisation, residual additions with the products before them. ``headrace.model.transformer`` is the readable
twin, and conformance tests keep the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.model_config import Activation, ModelConfig, NormPlacement, QkNorm
from headrace.core.rope import RopeConfig
from headrace.native.operations import Buffer, Epilogue, Operation, OpKind, WeightFormat

HIDDEN, HEAD_INPUT, LOGITS = "hidden", "head_input", "logits"

_ACTIVATIONS = {Activation.SILU: 0, Activation.GELU_TANH: 1}


@dataclass(frozen=True, slots=True)
class Listing:
    """A model as operations: ``body`` over the tokens of a step, up to the last layer's keys and values; ``tail``, the
    rest of that layer, over the rows whose hidden states are wanted; ``head`` over those that need logits.
    """

    body: tuple[Operation, ...]
    tail: tuple[Operation, ...]
    head: tuple[Operation, ...]
    buffers: tuple[Buffer, ...]
    ropes: tuple[RopeConfig, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All, in their order."""
        return self.body + self.tail + self.head


def lower(config: ModelConfig, formats: Mapping[str, WeightFormat], vectors: frozenset[str]) -> Listing:
    """List the operations of ``config`` for matrices of ``formats`` and the norm and bias ``vectors`` there are.

    Weights have the names of ``headrace.model.weight_layout``.
    """
    return _Lowering(config, formats, vectors).listing()


class _Lowering:
    """A listing while it is being written."""

    def __init__(self, config: ModelConfig, formats: Mapping[str, WeightFormat], vectors: frozenset[str]) -> None:
        self._config = config
        self._formats = formats
        self._vectors = vectors
        self._operations: list[Operation] = []
        self._buffers: dict[str, Buffer] = {}
        self._ropes = tuple(dict.fromkeys(layer.rope for layer in config.layers))

    def listing(self) -> Listing:
        config = self._config
        hidden = self._buffer(HIDDEN, config.hidden_size)
        self._add(OpKind.EMBED, output=hidden, matrix="embedding", scale=config.embedding_scale)
        last = config.num_layers - 1
        for layer in range(last):
            self._keys_and_values(layer)
            self._attention(layer)
            self._feed_forward(layer)
        self._keys_and_values(last)
        body = self._taken()
        self._attention(last)
        self._feed_forward(last)
        tail = self._taken()
        self._head()
        return Listing(body, tail, self._taken(), tuple(self._buffers.values()), self._ropes)

    def _taken(self) -> tuple[Operation, ...]:
        """The operations since the last call."""
        taken, self._operations = tuple(self._operations), []
        return taken

    def _keys_and_values(self, layer: int) -> None:
        config = self._config
        prefix = f"layers.{layer}."
        source = self._normed(HIDDEN, prefix + "attention_norm", prefix + "qkv")
        qkv = self._buffer("qkv", config.query_size + 2 * config.kv_size)
        self._matmul(source, qkv, prefix + "qkv", bias=prefix + "qkv_bias")
        facts = config.layers[layer]
        self._add(
            OpKind.ROTATE_STORE,
            input=qkv,
            output=qkv,
            layer=layer,
            rope=self._ropes.index(facts.rope),
            scale=config.attention_scale,
            eps=config.norm_eps,
            norm_whole=config.qk_norm is QkNorm.WHOLE,
            vector=self._optional(prefix + "q_norm"),
            second_vector=self._optional(prefix + "k_norm"),
        )

    def _attention(self, layer: int) -> None:
        config = self._config
        prefix = f"layers.{layer}."
        facts = config.layers[layer]
        attended = self._buffer("attended", config.query_size)
        self._add(
            OpKind.ATTENTION,
            input="qkv",
            output=attended,
            layer=layer,
            window=facts.sliding_window or 0,
            soft_cap=config.attention_soft_cap or 0.0,
        )
        source = self._as_input(attended, prefix + "output")
        self._add_to_hidden(source, prefix + "output", prefix + "output_bias", prefix + "attention_post_norm")

    def _feed_forward(self, layer: int) -> None:
        config = self._config
        prefix = f"layers.{layer}."
        source = self._normed(HIDDEN, prefix + "feed_forward_norm", prefix + "gate_up")
        gate_up = self._buffer("gate_up", 2 * config.intermediate_size)
        self._matmul(source, gate_up, prefix + "gate_up")
        gated = self._operand("gated", config.intermediate_size, prefix + "down")
        self._add(OpKind.GATE, input=gate_up, output=gated, activation=_ACTIVATIONS[config.activation])
        self._add_to_hidden(gated, prefix + "down", prefix + "down_bias", prefix + "feed_forward_post_norm")

    def _head(self) -> None:
        config = self._config
        matrix = "embedding" if config.has_tied_embeddings else "head"
        rows = self._buffer(HEAD_INPUT, config.hidden_size)
        normed = self._operand("head_normed", config.hidden_size, matrix)
        self._add(OpKind.NORM, input=rows, output=normed, vector="final_norm", eps=config.norm_eps)
        logits = self._buffer(LOGITS, config.vocab_size)
        self._matmul(normed, logits, matrix)
        if config.logits_divisor != 1.0 or config.final_soft_cap is not None:
            self._add(
                OpKind.SCALE,
                output=logits,
                scale=1.0 / config.logits_divisor,
                soft_cap=config.final_soft_cap or 0.0,
            )

    def _normed(self, source: str, norm: str, matrix: str) -> str:
        """The input of ``matrix``: ``source`` normed, where the model norms before a block."""
        if self._config.norm_placement is NormPlacement.POST:
            return self._as_input(source, matrix)
        target = self._operand("normed", self._config.hidden_size, matrix)
        self._add(OpKind.NORM, input=source, output=target, vector=norm, eps=self._config.norm_eps)
        return target

    def _as_input(self, source: str, matrix: str) -> str:
        """``source`` in the form ``matrix`` takes."""
        if not self._formats[matrix].is_quantized:
            return source
        target = self._buffer(source + "_int8", self._buffers[source].width, is_quantized=True)
        self._add(OpKind.QUANTIZE, input=source, output=target)
        return target

    def _add_to_hidden(self, source: str, matrix: str, bias: str, post_norm: str) -> None:
        config = self._config
        if config.norm_placement is NormPlacement.PRE:
            self._matmul(source, HIDDEN, matrix, bias, Epilogue.ADD, config.residual_scale)
            return
        block = self._buffer("block", config.hidden_size)
        self._matmul(source, block, matrix, bias)
        self._add(
            OpKind.NORM_ADD,
            input=block,
            output=HIDDEN,
            vector=post_norm,
            eps=config.norm_eps,
            scale=config.residual_scale,
        )

    def _matmul(
        self,
        source: str,
        target: str,
        matrix: str,
        bias: str = "",
        epilogue: Epilogue = Epilogue.STORE,
        scale: float = 1.0,
    ) -> None:
        self._add(
            OpKind.MATMUL,
            input=source,
            output=target,
            matrix=matrix,
            vector=self._optional(bias),
            epilogue=epilogue,
            scale=scale,
        )

    def _operand(self, name: str, width: int, matrix: str) -> str:
        """A buffer of the kind ``matrix`` takes as input."""
        if self._formats[matrix].is_quantized:
            return self._buffer(name + "_int8", width, is_quantized=True)
        return self._buffer(name, width)

    def _buffer(self, name: str, width: int, is_quantized: bool = False) -> str:
        buffer = self._buffers.setdefault(name, Buffer(name, width, is_quantized))
        assert buffer == Buffer(name, width, is_quantized)
        return name

    def _optional(self, name: str) -> str | None:
        return name if name in self._vectors else None

    def _add(self, kind: OpKind, **fields: object) -> None:
        self._operations.append(Operation(kind=kind, **fields))  # type: ignore[arg-type]
