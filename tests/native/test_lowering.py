"""The operations a model becomes: which, in what order, on what, for every shape of model."""

from __future__ import annotations

import pytest

from headrace.core.model_config import ModelConfig
from headrace.native.lowering import HEAD_INPUT, HIDDEN, LOGITS, Listing, lower
from headrace.native.operations import Epilogue, Operation, OpKind, WeightFormat
from tests.native.configs import LOCAL_ROPE, ROPE, SHAPES, matrix_shapes, vector_sizes


def lowered(config: ModelConfig, weight_format: WeightFormat = WeightFormat.F32) -> Listing:
    formats = dict.fromkeys(matrix_shapes(config), weight_format)
    return lower(config, formats, frozenset(vector_sizes(config)))


def brief(operation: Operation) -> str:
    """``matmul(normed, layers.0.qkv) -> qkv``, with ``+>`` where it adds."""
    arguments = ", ".join(
        name for name in (operation.input, operation.matrix, operation.vector, operation.second_vector) if name
    )
    adds = operation.epilogue is Epilogue.ADD or operation.kind is OpKind.NORM_ADD
    return f"{operation.kind.name.lower()}({arguments}) {'+>' if adds else '->'} {operation.output}"


def layer(listing: Listing, index: int, config: ModelConfig) -> list[str]:
    """What one layer does, with the layer's own weights named without their prefix."""
    layers = (listing.body + listing.tail)[1:]
    per_layer = len(layers) // config.num_layers
    operations = layers[index * per_layer : (index + 1) * per_layer]
    return [brief(operation).replace(f"layers.{index}.", "") for operation in operations]


def test_a_llama_norms_before_its_blocks_and_adds_their_products_to_the_residual_stream() -> None:
    config = SHAPES["llama"]
    listing = lowered(config)
    assert brief(listing.body[0]) == "embed(embedding) -> hidden"
    for index in range(config.num_layers):
        assert layer(listing, index, config) == [
            "norm(hidden, attention_norm) -> normed",
            "matmul(normed, qkv) -> qkv",
            "rotate_store(qkv) -> qkv",
            "attention(qkv) -> attended",
            "matmul(attended, output) +> hidden",
            "norm(hidden, feed_forward_norm) -> normed",
            "matmul(normed, gate_up) -> gate_up",
            "gate(gate_up) -> gated",
            "matmul(gated, down) +> hidden",
        ]
    assert [brief(operation) for operation in listing.head] == [
        "norm(head_input, final_norm) -> head_normed",
        "matmul(head_normed, head) -> logits",
    ]


def test_quantised_weights_get_quantised_inputs_in_the_same_operation_as_the_norm_or_gate() -> None:
    config = SHAPES["llama"]
    listing = lowered(config, WeightFormat.INT4)
    assert layer(listing, 0, config) == [
        "norm(hidden, attention_norm) -> normed_int8",
        "matmul(normed_int8, qkv) -> qkv",
        "rotate_store(qkv) -> qkv",
        "attention(qkv) -> attended",
        "quantize(attended) -> attended_int8",
        "matmul(attended_int8, output) +> hidden",
        "norm(hidden, feed_forward_norm) -> normed_int8",
        "matmul(normed_int8, gate_up) -> gate_up",
        "gate(gate_up) -> gated_int8",
        "matmul(gated_int8, down) +> hidden",
    ]
    assert [brief(operation) for operation in listing.head] == [
        "norm(head_input, final_norm) -> head_normed_int8",
        "matmul(head_normed_int8, head) -> logits",
    ]


def test_each_matrix_gets_the_input_its_own_format_takes() -> None:
    config = SHAPES["llama"]
    formats = dict.fromkeys(matrix_shapes(config), WeightFormat.F16)
    formats |= {"layers.0.gate_up": WeightFormat.INT8, "layers.1.output": WeightFormat.INT4}
    listing = lower(config, formats, frozenset(vector_sizes(config)))
    inputs = {op.matrix: op.input for op in listing.operations if op.kind is OpKind.MATMUL}
    assert inputs["layers.0.qkv"] == "normed"
    assert inputs["layers.0.gate_up"] == "normed_int8"
    assert inputs["layers.0.output"] == "attended"
    assert inputs["layers.1.output"] == "attended_int8"
    quantised = {buffer.name: buffer.is_quantized for buffer in listing.buffers}
    assert quantised["normed_int8"]
    assert not quantised["normed"]


def test_biases_join_the_product_they_belong_to_and_a_tied_head_is_the_embedding() -> None:
    config = SHAPES["tied, biased"]
    listing = lowered(config)
    assert "matmul(normed, qkv, qkv_bias) -> qkv" in layer(listing, 1, config)
    assert "matmul(attended, output, output_bias) +> hidden" in layer(listing, 1, config)
    assert brief(listing.head[1]) == "matmul(head_normed, embedding) -> logits"


def test_norms_of_queries_and_keys_go_with_the_rotation() -> None:
    for name, is_whole in (("qk norm per head", False), ("norms after", True)):
        config = SHAPES[name]
        listing = lowered(config)
        assert "rotate_store(qkv, q_norm, k_norm) -> qkv" in layer(listing, 0, config)
        rotations = [op for op in listing.operations if op.kind is OpKind.ROTATE_STORE]
        assert [op.norm_whole for op in rotations] == [is_whole] * config.num_layers
        assert all(op.eps == config.norm_eps and op.scale == config.attention_scale for op in rotations)


def test_a_model_that_norms_after_its_blocks_reads_the_residual_stream_as_it_is() -> None:
    config = SHAPES["norms after"]
    assert layer(lowered(config), 0, config) == [
        "matmul(hidden, qkv) -> qkv",
        "rotate_store(qkv, q_norm, k_norm) -> qkv",
        "attention(qkv) -> attended",
        "matmul(attended, output) -> block",
        "norm_add(block, attention_post_norm) +> hidden",
        "matmul(hidden, gate_up) -> gate_up",
        "gate(gate_up) -> gated",
        "matmul(gated, down) -> block",
        "norm_add(block, feed_forward_post_norm) +> hidden",
    ]
    assert layer(lowered(config, WeightFormat.INT8), 0, config)[:2] == [
        "quantize(hidden) -> hidden_int8",
        "matmul(hidden_int8, qkv) -> qkv",
    ]


def test_a_model_that_norms_around_its_blocks_has_windows_caps_and_ropes_of_its_layers() -> None:
    config = SHAPES["norms around"]
    listing = lowered(config)
    steps = layer(listing, 0, config)
    assert steps[0] == "norm(hidden, attention_norm) -> normed"
    assert steps[4:6] == ["matmul(attended, output) -> block", "norm_add(block, attention_post_norm) +> hidden"]
    attentions = [op for op in listing.operations if op.kind is OpKind.ATTENTION]
    assert [(op.layer, op.window, op.soft_cap) for op in attentions] == [(0, 9, 5.0), (1, 0, 5.0)]
    assert listing.ropes == (LOCAL_ROPE, ROPE)
    assert [op.rope for op in listing.operations if op.kind is OpKind.ROTATE_STORE] == [0, 1]
    assert {op.activation for op in listing.operations if op.kind is OpKind.GATE} == {1}
    assert listing.body[0].scale == pytest.approx(6.3)
    assert brief(listing.head[-1]) == "scale() -> logits"
    assert (listing.head[-1].scale, listing.head[-1].soft_cap) == (1.0, 3.0)


def test_scales_of_embedding_residual_and_logits_are_where_they_apply() -> None:
    config = SHAPES["scaled"]
    listing = lowered(config)
    assert listing.body[0].scale == 3.0
    added = [op for op in listing.operations if op.epilogue is Epilogue.ADD]
    assert len(added) == 2 * config.num_layers
    assert {op.scale for op in added} == {0.4}
    assert {op.scale for op in listing.operations if op.kind is OpKind.MATMUL and op.epilogue is Epilogue.STORE} == {
        1.0
    }
    assert (listing.head[-1].scale, listing.head[-1].soft_cap) == (0.5, 0.0)


def test_layers_that_turn_alike_share_a_rope() -> None:
    assert lowered(SHAPES["llama"]).ropes == (ROPE,)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("weight_format", [WeightFormat.F32, WeightFormat.INT4])
def test_every_buffer_is_declared_once_is_used_and_is_written_before_it_is_read(name, weight_format) -> None:
    listing = lowered(SHAPES[name], weight_format)
    names = [buffer.name for buffer in listing.buffers]
    operations = listing.operations
    assert len(set(names)) == len(names)
    assert {op.output for op in operations} | {op.input for op in operations} - {None} == set(names)
    written = {HEAD_INPUT}  # filled with the rows that need logits
    for operation in operations:
        assert operation.input is None or operation.input in written
        written.add(operation.output)
    assert all(op.output != LOGITS for op in listing.body + listing.tail)
    assert listing.body[0].output == HIDDEN


@pytest.mark.parametrize("name", SHAPES)
def test_what_follows_the_last_keys_and_values_is_apart(name) -> None:
    listing = lowered(SHAPES[name])
    assert listing.body[-1].kind is OpKind.ROTATE_STORE
    assert listing.tail[0].kind is OpKind.ATTENTION
    assert {op.kind for op in listing.tail}.isdisjoint({OpKind.EMBED, OpKind.ROTATE_STORE})


@pytest.mark.parametrize("name", SHAPES)
def test_every_weight_is_used(name) -> None:
    config = SHAPES[name]
    listing = lowered(config)
    operations = listing.operations
    used = {op.matrix for op in operations} | {op.vector for op in operations} | {op.second_vector for op in operations}
    assert used - {None} == matrix_shapes(config).keys() | vector_sizes(config).keys()
