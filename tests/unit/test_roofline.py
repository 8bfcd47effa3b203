"""The roofline cost against physical limits, and against measured runs before any calibration."""

from typing import cast

import numpy as np
import pytest

from simulator.cost.check import check_cost
from simulator.cost.engine_times import EngineTimes
from simulator.cost.roofline import padded, roofline_cost, to_fp
from simulator.cost.step import (
    FP_BITS,
    Cost,
    decode_attention_time,
    dense_time,
    prefill_attention_time,
)
from simulator.cost.unit import unit_cost
from simulator.errors import ConfigError
from simulator.profiles.engine import capture_sizes
from simulator.profiles.gpu import list_gpus, load_gpu
from simulator.profiles.model import load_model

H100, MODEL = load_gpu("h100"), load_model("llama-3.1-8b")
NS = 1e9


def cost(gpu: str = "h100", model: str = "llama-3.1-8b", tp: int = 1, dtype: str = "bf16", kv: str = "bf16",
         engine: EngineTimes | None = None, seqs: int = 128, budget: int = 2048) -> Cost:
    times = engine or EngineTimes()
    return roofline_cost(load_gpu(gpu), load_model(model), tp, dtype, kv, times, seqs, budget)


def fixed_batch_ns(table: Cost, batch: int, prompt: int = 512, output: int = 128, budget: int = 2048) -> int:
    """[ns] all prompts in steps of `budget` tokens (split where it fills), then the decode steps."""
    total, left, fed = 0, [prompt] * batch, 0
    while fed < batch * prompt:
        room, tokens, pairs, sequences = budget, 0, 0, 0
        for i in range(batch):
            take = min(left[i], room)
            context = prompt - left[i]
            pairs += take * context + take * (take + 1) // 2
            left[i], room = left[i] - take, room - take
            tokens, sequences = tokens + take, sequences + (take > 0)
        total += dense_time(table, 1, tokens) + prefill_attention_time(table, sequences, tokens, pairs)
        fed += tokens
    for step in range(1, output):
        total += dense_time(table, 0, batch) + decode_attention_time(table, batch, batch * (prompt + step))
    return int(total)


@pytest.mark.parametrize(("batch", "measured"), [(1, 141), (8, 1005), (32, 2900)])
def test_uncalibrated_rates_are_within_a_quarter_of_measured(batch: int, measured: float) -> None:
    # vLLM 0.24.0, Llama-3.1-8B bf16 on one H100, 512 in, 128 out, all at once: output tokens/s
    predicted = batch * 128 / (fixed_batch_ns(cost(), batch) / NS)
    assert predicted == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("gpu", [gpu.path.stem for gpu in list_gpus()])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int4"])
def test_a_decode_step_reads_all_weights(gpu: str, dtype: str) -> None:
    # All but the embedding table, of which one row is read.
    bytes_read = MODEL.weight_bytes(dtype) - 2 * MODEL.vocab * MODEL.hidden
    assert cost(gpu, dtype=dtype).dense_ns[0, 1] >= bytes_read / load_gpu(gpu).bandwidth * NS


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_large_batches_are_bound_by_compute(dtype: str) -> None:
    table = cost(dtype=dtype, budget=8192)
    slope = (table.dense_ns[1, 8192] - table.dense_ns[1, 6144]) / 2048
    limit = MODEL.flops_per_token() / H100.peak_flops(dtype) * NS
    assert limit <= slope <= 2 * limit
    assert table.slope_fp / 2**FP_BITS == pytest.approx(slope, rel=0.01)


def test_the_extension_continues_the_table() -> None:
    short, long = cost(budget=2048), cost(budget=4096)
    assert dense_time(short, 1, 4096) == pytest.approx(int(long.dense_ns[1, 4096]), rel=0.01)


def test_decode_attention_reads_the_cache() -> None:
    table = cost()
    ideal = 100_000 * MODEL.kv_bytes_per_token("bf16") / H100.bandwidth * NS
    assert ideal <= decode_attention_time(table, 64, 100_000) <= 1.3 * ideal
    assert cost(kv="fp8").decode_context_fp * 2 == pytest.approx(int(table.decode_context_fp), rel=1e-6)


def test_prefill_attention_computes_pairs() -> None:
    pairs = 2048 * 2049 // 2
    ideal = pairs * MODEL.attention_flops_per_pair() / H100.peak_flops("bf16") * NS
    assert ideal <= prefill_attention_time(cost(), 1, 2048, pairs) <= 3 * ideal


@pytest.mark.parametrize("gpu", ["h100", "l4", "mi300x"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_more_tokens_never_take_less_time(gpu: str, tp: int) -> None:
    assert np.all(np.diff(cost(gpu, tp=tp).dense_ns, axis=1) >= 0)


def test_tensor_parallelism_halves_the_work_and_adds_all_reduce() -> None:
    one, two = cost(budget=8192), cost(budget=8192, tp=2)
    assert two.decode_context_fp * 2 == pytest.approx(int(one.decode_context_fp), rel=1e-6)
    assert two.prefill_pair_fp * 2 == pytest.approx(int(one.prefill_pair_fp), rel=1e-6)
    halved = one.dense_ns[1, 8192] / 2
    # Ring over two GPUs: each all-reduce (2 per layer and one for the embedding) sends the whole (T, hidden)
    # once per direction, so this is the least that must be added to the halved work.
    traffic = (2 * MODEL.layers + 1) * 8192 * MODEL.hidden * 2 / H100.link_bandwidth * NS
    assert halved + traffic <= two.dense_ns[1, 8192] < one.dense_ns[1, 8192]
    assert one.dense_ns[0, 1] / 2 < two.dense_ns[0, 1] < one.dense_ns[0, 1]


def test_quantised_weights_are_read_faster() -> None:
    half, quarter = cost(dtype="fp8").dense_ns[0, 1], cost(dtype="int4").dense_ns[0, 1]
    assert quarter < half < cost().dense_ns[0, 1]


def test_weight_only_formats_do_not_compute_faster() -> None:
    assert cost("a100", dtype="int4").slope_fp == cost("a100", dtype="fp8").slope_fp == cost("a100").slope_fp


def test_graph_sizes_as_counted_on_the_engine() -> None:
    # vLLM 0.24.0 captured 35 sizes at max_num_seqs 128 and 11 at 32.
    assert len(capture_sizes(256)) == 35
    assert len(capture_sizes(64)) == 11
    assert capture_sizes(6) == [1, 2, 4]
    assert capture_sizes(300)[-3:] == [256, 272, 288]
    assert capture_sizes(0) == []


def test_batches_are_padded_to_graphs_and_eager_above() -> None:
    assert padded(np.array([1, 3, 9, 249, 256, 257, 300]), 256).tolist() == [1, 4, 16, 256, 256, 257, 300]
    table = cost(engine=EngineTimes(cpu_step_s=1e-3, eager_cpu_s=20e-3))
    # The layers run padded; only the head's few sampled rows tell 9 sequences from 16.
    assert table.dense_ns[1, 9] <= table.dense_ns[1, 16] < table.dense_ns[1, 17]
    assert (table.dense_ns[0, 16] - table.dense_ns[0, 9]) < 0.001 * table.dense_ns[0, 9]
    assert table.eager[1, 256:258].tolist() == [0, 1]
    assert table.cpu_ns[1, 256:258].tolist() == [1_000_000, 20_000_000]


def test_without_graphs_every_step_is_eager() -> None:
    table = cost(engine=EngineTimes(graph_max_tokens=0, decode_graph_max=0))
    assert table.eager[:, 1:].min() == 1


def test_engine_times_become_ticks() -> None:
    table = cost(engine=EngineTimes(cpu_step_s=2e-3, cpu_seq_s=2e-5, prep_step_s=1e-3, prep_seq_s=1e-5,
                                    frontend_in_s=3e-3, frontend_each_s=1e-4, frontend_out_s=4e-3))
    assert set(table.prep_ns.ravel().tolist()) == {1_000_000}
    assert (table.cpu_seq_ns, table.prep_seq_ns) == (20_000, 10_000)
    frontend = (table.frontend_in_ns, table.frontend_each_ns, table.frontend_out_ns)
    assert frontend == (3_000_000, 100_000, 4_000_000)


@pytest.mark.parametrize(("times", "message"), [
    ({"cpu_step_s": -1.0}, "cpu_step_s must be >= 0, got -1.0"),
    ({"cpu_step_s": float("nan")}, "cpu_step_s must be >= 0, got nan"),
    ({"prep_step_s": 1.0}, "prep_step_s and prep_seq_s must not exceed"),
])
def test_engine_times_that_cannot_be(times: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineTimes(**cast("dict[str, int]", times))


def test_unit_cost_is_the_same_for_every_batch() -> None:
    table = unit_cost(7)
    assert {dense_time(table, kind, tokens) for kind in (0, 1) for tokens in (1, 2, 10**6)} == {7}
    assert decode_attention_time(table, 5, 10**6) == prefill_attention_time(table, 5, 100, 10**6) == 0


@pytest.mark.parametrize(("change", "message"), [
    ({"dense_ns": np.full((2, 1), -1, dtype=np.int64)}, r"cost\.dense_ns must be between 0"),
    ({"dense_ns": np.zeros((2, 1))}, "must be int64 of shape"),
    ({"dense_ns": np.zeros((1, 2), dtype=np.int64)}, "must be int64 of shape"),
    ({"eager": np.full((2, 1), 2, dtype=np.int64)}, "eager must hold 0 and 1 only"),
    ({"prep_ns": np.ones((2, 1), dtype=np.int64)}, r"prep_ns must not exceed cost\.cpu_ns"),
    ({"decode_context_fp": np.int64(-1)}, r"cost\.decode_context_fp must be between 0"),
    ({"prefill_pair_fp": np.int64(2**62 + 1)}, r"cost\.prefill_pair_fp must be between 0"),
])
def test_costs_that_cannot_be_used(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_cost(unit_cost()._replace(**change))



def test_limits_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="must be >= 1, got 0 and 2048"):
        cost(seqs=0)


def test_fixed_point_rounds_to_nearest() -> None:
    assert to_fp(1e-9) == 2**FP_BITS
    assert to_fp(0.0) == 0
