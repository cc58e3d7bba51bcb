"""Step times of large models on large devices, against figures worked out by hand and published ones."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.scheduler.cost_model import StepFeatures, chunk_pairs
from headrace.sim.devices import NVLINK, parse_device
from headrace.sim.model_shapes import MODEL_SHAPES, find_model
from headrace.sim.roofline import RooflineFactors, RooflineStepTime, num_kv_tokens
from headrace.sim.step_time import costs_of

FITTED = RooflineFactors()
IDEAL = RooflineFactors(weights=1.0, keys_and_values=1.0, all_reduce=0.0, layer_s=0.0, flops_share=1.0)


def decode_s(model: str, device: str, batch: int, context: int, factors: RooflineFactors = FITTED) -> float:
    step_time = RooflineStepTime(find_model(model), parse_device(device), factors)
    return step_time.step_s(StepFeatures(batch, batch * context, 0, 0), batch)


def prefill_s(model: str, device: str, start: int, end: int) -> float:
    step_time = RooflineStepTime(find_model(model), parse_device(device))
    return step_time.step_s(StepFeatures(0, 0, end - start, chunk_pairs(start, end - start)), 1)


def test_an_ideal_step_of_one_stream_reads_the_weights_once() -> None:
    # 139 GB over 8 x 3.35 TB/s = 5.19 ms, and 2000 x 320 KiB of keys and values
    assert decode_s("llama-70b", "h100x8", 1, 2000, IDEAL) == pytest.approx(5.19e-3 + 24e-6, rel=0.01)


@pytest.mark.parametrize(("batch", "milliseconds"), [(1, 11.0), (32, 13.8), (128, 20.3), (256, 33.0)])
def test_decoding_is_as_slow_as_a_measured_engine(batch: int, milliseconds: float) -> None:
    assert decode_s("llama-70b", "h100x8", batch, 2000) * 1e3 == pytest.approx(milliseconds, rel=0.12)


def test_prompts_cost_arithmetic_and_cached_ones_less() -> None:
    whole, rest = prefill_s("llama-70b", "h100x8", 0, 2000), prefill_s("llama-70b", "h100x8", 1500, 2000)
    assert whole == pytest.approx(0.108, rel=0.05)
    assert 2.5 < whole / rest < 4.0


def test_the_kv_cache_is_what_the_weights_leave() -> None:
    assert num_kv_tokens(find_model("llama-70b"), parse_device("h100x8")) == pytest.approx(1.25e6, rel=0.01)
    with pytest.raises(ConfigError, match="no room for a KV cache on 1 x h100; take more devices, as in h100x8"):
        num_kv_tokens(find_model("llama-70b"), parse_device("h100"))


def test_counts_of_the_shapes_agree_with_their_dimensions() -> None:
    assert find_model("LLAMA-70B").kv_bytes_per_token == 320 * 1024
    assert find_model("llama-8b").kv_bytes_per_token == 128 * 1024
    for shape in MODEL_SHAPES.values():
        assert shape.num_active_parameters <= shape.num_parameters
        # attention and feed-forward of dense models: 10 to 16 matrices of d x d a layer, and the output head
        assert 10 < shape.num_active_parameters / (shape.num_layers * shape.hidden_size**2) < 21


def test_adding_up_over_links_is_read_off_measurements() -> None:
    assert NVLINK.all_reduce_s(1, 1e6) == 0.0
    assert NVLINK.all_reduce_s(8, 524_288) == pytest.approx(15.0e-6)
    assert NVLINK.all_reduce_s(8, 2 * 16_777_216) == pytest.approx(356e-6)
    assert NVLINK.all_reduce_s(4, 1) == pytest.approx(4.8e-6)


@pytest.mark.parametrize("text", ["h100x3", "h100x16", "h10", "h100 x8", "", "cpu"])
def test_a_device_that_is_not_known_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        parse_device(text)
    with pytest.raises(ConfigError, match="no model shape 'llama-80b'; did you mean llama-8b"):
        find_model("llama-80b")


def test_a_cost_model_that_profiled_a_device_foretells_its_steps() -> None:
    step_time = RooflineStepTime(find_model("llama-70b"), parse_device("h100x8"))
    costs = costs_of(step_time)
    for features in (
        StepFeatures(40, 60_000, 0, 0),
        StepFeatures(40, 60_000, 500, 600_000),
        StepFeatures(0, 0, 1500, 9_000_000),
    ):
        assert costs.predict(features) == pytest.approx(step_time.step_s(features, 0), rel=0.12)
