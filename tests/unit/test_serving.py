"""Adapters and samplers: sizes and means known from outside, and what is refused by name."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simulator import load_scenario, simulate
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.collective import through_host_s
from simulator.errors import ConfigError
from simulator.profiles.adapters import Lora
from simulator.profiles.capacity import kv_capacity
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu, without_nvlink
from simulator.profiles.model import load_model
from simulator.result import Result
from simulator.scenario.setup import prepare

MODEL = load_model("llama-3.1-8b")
RANK_16 = 41_943_040
"""Trainable parameters that PEFT prints for Llama-3-8B with r=16 on all seven products of a layer."""
PIPELINE: dict[str, Any] = {"hardware": {"pipeline_parallel": 2}}


def scenario(tmp_path: Path, **changes: Any) -> str:
    content: dict[str, Any] = {
        "name": "t", "workload": {"arrivals": {"kind": "burst", "requests": 12},
                                  "prompt": {"kind": "fixed", "value": 40}, "output": {"kind": "fixed", "value": 20}},
        "model": "llama-3.1-8b", "hardware": {"gpu": "h200-sxm"}, "engine": {"name": "vllm-0.24"},
        "max_model_len": 4096}
    for key, value in changes.items():
        content[key] = content.get(key, {}) | value if isinstance(value, dict) else value
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_slots_hold_the_published_number_of_parameters() -> None:
    assert Lora(1, 16, 1).memory_bytes(MODEL) == 2 * RANK_16
    assert Lora(8, 8, 1).memory_bytes(MODEL) == 8 * RANK_16


@pytest.mark.parametrize(("adapters", "sequences"), [(1, 3), (2, 4), (3, 5)])
def test_adapters_that_a_step_meets_are_the_mean_over_all_ways(adapters: int, sequences: int) -> None:
    ways = [len(set(way)) for way in product(range(adapters), repeat=sequences)]
    assert Lora(adapters, 16, adapters).met(np.array([float(sequences)]))[0] == pytest.approx(sum(ways) / len(ways))


def decode_ms(**extra: Any) -> Any:
    return calibrated_cost(load_gpu("h200-sxm"), load_engine("vllm-0.24"), MODEL, 1, "bf16", "bf16", 128, 2048,
                           **extra).dense_ns[0] * 1e-6


def test_decode_steps_take_as_much_longer_as_in_the_real_engine() -> None:
    """Medians of decode gaps with less those without, vLLM 0.24 on one H200 (llama8b-h200-lora, -sampling: batch_*)."""
    plain = decode_ms()
    one, none = decode_ms(lora=Lora(8, 16, 1)), decode_ms(lora=Lora(8, 16, 0))
    assert (none == plain).all()
    for sequences, longer in ((1, 6.712 - 5.001), (32, 7.407 - 5.901)):
        assert one[sequences] - plain[sequences] == pytest.approx(longer, abs=0.02)
    eight = decode_ms(lora=Lora(8, 16, 8))
    assert eight[64] - plain[64] == pytest.approx(10.946 - 6.777, abs=0.2)
    for sampling, longer in (("top_p", 5.887 - 5.825), ("top_k_top_p", 5.939 - 5.825)):
        assert decode_ms(sampling=sampling)[32] - plain[32] == pytest.approx(longer, abs=0.02)


def test_all_reduce_through_host_memory_moves_what_a_ring_moves() -> None:
    """Two GPUs move a message once each way, four 1.5 times: large messages at 29 of 64 GB/s (NCCL 2.28.9)."""
    gpu, large = without_nvlink(load_gpu("h200-sxm")), np.array([2.0**28])
    two, four = (float(through_host_s(gpu, n, large)[0]) for n in (2, 4))
    assert 2.0**28 / two == pytest.approx(29.2e9, rel=0.01)
    assert four / two == pytest.approx(1.5, rel=0.01)
    assert float(through_host_s(gpu, 2, np.array([8192.0]))[0]) == pytest.approx(16.4e-6)


def test_pipeline_stages_leave_the_blocks_that_the_engine_counted() -> None:
    """120,034 for two stages of the 8B on H200 (llama8b-h200-pp2); one GPU alone had 56,105 blocks of twice the size.
    Weights: half the layers and one table of 128,256 x 4,096."""
    h200, vllm = load_gpu("h200-sxm"), load_engine("vllm-0.24")
    two = kv_capacity(h200, vllm, MODEL, 1, "bf16", "bf16", 128, 2048, 0.9, 16, 9216, stages=2)
    assert two.num_gpu_blocks == pytest.approx(120_034, rel=0.005)
    whole = kv_capacity(h200, vllm, MODEL, 1, "bf16", "bf16", 128, 2048, 0.9, 16, 9216)
    assert two.block_bytes * 2 == whole.block_bytes
    positions = 131_072 * 128 * 2  # cosines and sines, on both stages
    assert 2 * (two.weight_bytes - positions) == pytest.approx(whole.weight_bytes - positions, abs=2 * 4096)
    with pytest.raises(ConfigError, match=r"pipeline stages must be 1 to 32, the layers of .*, got 33"):
        kv_capacity(h200, vllm, MODEL, stages=33)
    with pytest.raises(ConfigError, match="layers that are not alike"):
        kv_capacity(h200, vllm, load_model("gemma-2-27b"), stages=2)


@pytest.mark.parametrize(("changes", "message"), [
    ({"engine": {"lora": {"rank": 64}}}, "rank must be <= 16, the rank that was measured, got 64"),
    ({"engine": {"lora": {}}, "hardware": {"tensor_parallel": 2}}, "adapters are modelled on one GPU"),
    ({"engine": {"lora": {}}, "model": "mixtral-8x7b"}, "adapters on experts are not modelled"),
    ({"engine": {"name": "vllm-0.19", "lora": {}}}, "adapters are modelled for engine vllm-0.24"),
    ({"engine": {"name": "sglang", "sampling": "top_p"}}, "modelled for engine vllm-0.24, where it was .*, got sglang"),
    ({"engine": {"sampling": "top_k"}, "hardware": {"gpu": "unit"}}, "engine.sampling has no effect on gpu: unit"),
    ({"engine": {"lora": {}}, "cost_model": "roofline"}, "engine.lora has no effect with cost_model: roofline"),
    ({"hardware": {"interconnect": "pcie"}}, "hardware.interconnect has no effect on one GPU"),
    ({"hardware": {"compile_cache": True}, "engine": {"name": "vllm-0.19"}},
     r"yaml:\d+: hardware.compile_cache means nothing for vllm-0.19: .* known of vllm-0.24 only"),
    ({"hardware": {"compile_cache": True, "gpu": "unit"}}, "hardware.compile_cache has no effect on gpu: unit"),
    ({"hardware": {"compile_cache": True}, "kv": {"num_gpu_blocks": 1000}},
     "hardware.compile_cache has no effect beside kv.num_gpu_blocks"),
    ({"hardware": {"pipeline_parallel": 2, "gpu": "unit"}}, "hardware.pipeline_parallel has no effect on gpu: unit"),
    ({"hardware": {"pipeline_parallel": 33}}, "pipeline_parallel: pipeline stages must be 1 to 32, the layers"),
    ({"hardware": {"pipeline_parallel": 3, "tensor_parallel": 4}}, "must be <= 8, the GPUs of one host .*, got 12"),
    (PIPELINE | {"model": "gemma-2-27b"}, "hardware.pipeline_parallel: .*layers that are not alike"),
    (PIPELINE | {"engine": {"name": "vllm-0.19"}}, "modelled as vllm 0.24 runs them, not vllm 0.19"),
    (PIPELINE | {"engine": {"name": "sglang"}}, "modelled as vllm 0.24 runs them, not sglang"),
    (PIPELINE | {"engine": {"schedule_ahead": 2}}, "engine.schedule_ahead must be 0 or 1 with pipeline stages"),
    (PIPELINE | {"engine": {"lora": {}}}, "pipeline stages are not modelled together with engine.lora"),
    (PIPELINE | {"engine": {"speculation": {"method": "ngram", "tokens": 3, "acceptance": 0.5}}},
     "pipeline stages are not modelled together with engine.speculation"),
    (PIPELINE | {"kv": {"offload": {"gib": 10, "gb_per_s": 50}}}, "not modelled together with kv.offload"),
    (PIPELINE | {"admission": {"predicted_ttft_s": 1}}, "not modelled together with admission.predicted_ttft_s"),
    (PIPELINE | {"cost_model": "roofline"}, "not modelled together with cost_model: roofline"),
    (PIPELINE | {"policy": {"name": "orca"}}, r"hardware.pipeline_parallel: needs a policy .*\(chunked, .*, got orca"),
    (PIPELINE | {"policy": {"name": "sarathi", "tbt_s": 0.05}}, "needs a policy that lets requests .*, got sarathi"),
    (PIPELINE | {"model": "qwen2.5-14b"}, "Qwen2ForCausalLM runs on the older model runner, .*schedule_ahead: 0"),
])
def test_what_is_not_modelled_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(load_scenario(scenario(tmp_path, **changes)))


def test_a_later_start_has_the_blocks_that_the_engine_counted(tmp_path: Path) -> None:
    """llama8b-h200-b, a first start, had 56,105 blocks, -c, a later one, 56,498: the larger peak is 768 MiB."""
    limits = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
    for cache, blocks in ((False, 56_105), (True, 56_498)):
        hardware = {"gpu": "h200-sxm", "gpu_memory_utilization": 0.9, "compile_cache": cache}
        setup = prepare(load_scenario(scenario(tmp_path, hardware=hardware, policy=limits)))
        assert setup.limits.num_blocks + 1 == pytest.approx(blocks, rel=0.0005)


def test_more_adapters_than_slots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapters must be <= max_loras \(1; loading them in turn"):
        load_scenario(scenario(tmp_path, engine={"lora": {"adapters": 2}}))


def test_both_engines_agree_and_slots_cost_memory_only_until_they_are_used(tmp_path: Path) -> None:
    def run(**changes: Any) -> Result:
        return simulate(load_scenario(scenario(tmp_path, **changes)), engine="reference")

    plain, idle = run(), run(engine={"lora": {"max_loras": 8, "adapters": 0}})
    used = run(engine={"lora": {"max_loras": 8, "adapters": 8}, "sampling": "top_k_top_p"})
    assert idle.setup.limits.num_blocks < plain.setup.limits.num_blocks
    assert idle.summary["e2e_s"]["mean"] == plain.summary["e2e_s"]["mean"] < used.summary["e2e_s"]["mean"]
    fast = simulate(load_scenario(scenario(tmp_path, engine={"lora": {"max_loras": 8, "adapters": 8},
                                                             "sampling": "top_k_top_p"})), engine="fast")
    assert fast.summary == used.summary
