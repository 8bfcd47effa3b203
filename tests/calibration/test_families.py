"""Step costs of the model families beside dense grouped-query attention: latent attention, experts, mixed formats."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulator.cost.attention import AttentionTime
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.device import Device
from simulator.cost.gpu_times import gpu_times
from simulator.cost.moe import Routing, touched
from simulator.cost.step import Cost
from simulator.errors import ConfigError
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.profiles.shape import Experts
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from

ENGINE = load_engine("vllm-0.24")
QWEN = Experts(128, 8, 768)


def cost(model: str, gpu: str = "h200-sxm", tp: int = 1, kv: str = "bf16", routing: Routing | None = None) -> Cost:
    return calibrated_cost(load_gpu(gpu), ENGINE, load_model(model), tp, "auto", kv, 128, 2048,
                           routing=routing or Routing())


def attention(tp: int, kv: str = "bf16") -> AttentionTime:
    gpu = load_gpu("h200-sxm")
    return AttentionTime(gpu, gpu_times(gpu), load_model("deepseek-v3"), tp, kv)


def test_latent_rows_are_read_once_for_all_heads_on_every_gpu() -> None:
    """DeepSeek-V3: 61 layers x 576 elements x 2 bytes = 70,272 bytes a context token, at 3,000 of 3,350 GB/s of the
    datasheet (FlashMLA on Hopper); tensor parallelism splits heads, not rows."""
    by_hand = 61 * 576 * 2 / (4.8e12 * 3000 / 3350)
    assert attention(8).context_s(61) == pytest.approx(by_hand, rel=1e-9)
    assert attention(16).context_s(61) == attention(8).context_s(61)
    assert int(cost("deepseek-v3", tp=8).decode_context_fp) == pytest.approx(by_hand * 1e9 * 2**32, rel=1e-6)


def test_latent_attention_of_all_heads_on_one_gpu_is_limited_by_arithmetic() -> None:
    """128 heads x 2 x (576 + 512) FLOP = 278,528 a row at 660 TFLOP/s (FlashMLA, 2025-04-22) is longer than reading its
    1,152 bytes; 16 heads fill the same tile of 64 as 64 do."""
    assert attention(1).context_s(1) == pytest.approx(278_528 / 660e12, rel=1e-3)
    assert attention(8).latent_flops() == attention(2).latent_flops() == 2 * 64 * 1088


def test_prefill_of_latent_attention_runs_with_separate_heads() -> None:
    """A query-key pair of 16 heads of one GPU: 2 FLOP x (192 for the score + 128 for the value), in 61 layers."""
    times = gpu_times(load_gpu("h200-sxm"))
    assert attention(8).pair_s(61) * times.prefill_rate == pytest.approx(61 * 16 * 2 * (192 + 128))


def test_a_latent_step_reads_no_faster_than_the_datasheet() -> None:
    """One token of DeepSeek-V3 on eight GPUs meets 37B of its weights, 8 of 256 experts in each layer."""
    model, gpu = load_model("deepseek-v3"), load_gpu("h200-sxm")
    read = model.flops_per_token(8) / 2 * 1.0 / gpu.bandwidth
    assert int(cost("deepseek-v3", tp=8).dense_ns[0, 1]) * 1e-9 > read


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("tokens", [1, 4, 32])
def test_the_slowest_rank_agrees_with_random_routers(ranks: int, tokens: int) -> None:
    """Mean over 3,000 draws of 8 of 128 experts a token: most experts read by any rank, most pairs computed by any.
    The formula takes small counts for normal, which one token over eight ranks shows most (6 %)."""
    rng = np.random.default_rng(3)
    read, pairs = [], []
    for _ in range(3000):
        picked = rng.random((tokens, 128)).argpartition(8, axis=1)[:, :8]
        of_rank = picked // (128 // ranks)
        pairs.append(np.bincount(of_rank.ravel(), minlength=ranks).max())
        read.append(np.bincount(np.unique(picked) // (128 // ranks), minlength=ranks).max())
    found_read, found_pairs = Routing(ranks).slowest(np.array([float(tokens)]), QWEN)
    assert found_read[0] == pytest.approx(np.mean(read), rel=0.07)
    assert found_pairs[0] == pytest.approx(np.mean(pairs), rel=0.07)


def test_one_rank_is_no_expert_parallelism() -> None:
    rows = np.array([1.0, 7.0, 64.0, 5000.0])
    read, pairs = Routing(1).slowest(rows, QWEN)
    assert pairs == pytest.approx(8 * rows) and read == pytest.approx(touched(rows, QWEN))


def test_experts_given_by_share() -> None:
    """All tokens on the first eight experts: eight are read whatever the batch, by one of two ranks; it computes all.
    Equal shares are no preference. An expert that every token wants is picked once by each."""
    rows = np.array([1.0, 512.0])
    first = Routing(2, shares=(1.0,) * 8 + (0.0,) * 120)
    read, pairs = first.slowest(rows, QWEN)
    assert read == pytest.approx([8, 8], rel=1e-6) and pairs == pytest.approx([8, 4096])
    assert Routing(2, shares=(0.01,) * 128).slowest(rows, QWEN)[0] == pytest.approx(Routing(2).slowest(rows, QWEN)[0])
    greedy = Routing(shares=(1.0,) + (0.001,) * 127).picked(QWEN)
    assert greedy[0] == 1.0 and greedy.sum() == pytest.approx(8.0)
    with pytest.raises(ConfigError, match="must hold 128 shares, one an expert, got 3"):
        Routing(shares=(1.0, 1.0, 1.0)).picked(QWEN)


def test_skewed_experts_touch_fewer_and_wait_longer() -> None:
    """Zipf's law: fewer experts are read on one GPU, and the rank with the popular ones computes more than its part."""
    rows = np.array([64.0])
    assert touched(rows, QWEN, Routing(skew=1.0)) < touched(rows, QWEN)
    assert Routing(4, skew=1.0).slowest(rows, QWEN)[1] > Routing(4).slowest(rows, QWEN)[1]


@pytest.mark.parametrize(("sequences", "milliseconds", "context"), [
    (1, 4.50, 577), (8, 7.39, 4615), (32, 11.0, 18461), (128, 13.2, 73843)])
def test_decode_steps_with_experts_dealt_out_to_two_gpus(sequences: int, milliseconds: float, context: int) -> None:
    """Output gaps of vLLM 0.24, Qwen3-30B-A3B on two H200 with expert parallelism; nothing was fitted on them."""
    found = cost("qwen3-30b-a3b", tp=2, routing=Routing(2))
    tail = (context * int(found.decode_context_fp) + sequences * int(found.decode_seq_fp)) / 2**32
    assert (int(found.dense_ns[0, sequences]) + tail) * 1e-6 == pytest.approx(milliseconds, rel=0.1)


def test_wide_experts_run_at_the_rate_of_large_products(data_dir: Path) -> None:
    """aiconfigurator's Mixtral 8x7B layer on two H100: 2,048 and 8,192 tokens; at narrow experts' rate twice as long.
    The engine is given 0.81 of such a table's rate."""
    table = pd.read_csv(data_dir / "ops" / "op_moe_h100_aic_vllm0.14.0.csv")
    rows = table[(table.inter_size == 14336) & (table.moe_tp_size == 2) & (table.moe_ep_size == 1)
                 & (table.moe_dtype == "bfloat16") & (table.distribution == "balanced")
                 & table.num_tokens.isin([2048, 8192])].sort_values("num_tokens")
    times = gpu_times(load_gpu("h100-sxm")).experts
    found = times.seconds(np.array([2048.0, 8192.0]), Experts(8, 2, 14336), 4096, 2, 3, 2.0)
    assert found * 1e6 == pytest.approx(rows.latency_us.to_numpy() / 0.81, rel=0.25)


def test_parts_left_in_sixteen_bits_are_read_in_sixteen() -> None:
    """gpt-oss-120b: experts in 4.25 bits, attention in 16; a device with attention quantised too reads less."""
    model, gpu = load_model("gpt-oss-120b"), load_gpu("h100-sxm")
    device = Device(gpu, gpu_times(gpu), model, 1, model.weight_format("auto"))
    rows = np.ones(1)
    gemms = model.attention_gemms()
    sixteen = sum(device.times.gemm.seconds(rows, gemm.n, gemm.k) for gemm in gemms)
    assert device.products_s(rows, gemms, "attention") == pytest.approx(sixteen)
    assert device.products_s(rows, gemms, "shared") < sixteen


@pytest.mark.parametrize(("model", "tp"), [
    ("command-r", 1), ("deepseek-v2-lite", 1), ("gemma-2-27b", 1), ("gemma-3-27b", 1), ("glm-4.5-air", 2),
    ("gpt-oss-120b", 1), ("kimi-k2", 8), ("llama-3.1-70b-awq", 1), ("llama-3.1-405b-fp8", 4), ("llama-4-scout", 2),
    ("mistral-7b-v0.1", 1), ("mixtral-8x22b", 4), ("phi-3-mini", 1), ("qwen1.5-moe-a2.7b", 1),
    ("qwen2.5-7b-gptq-int4", 1), ("qwen3-235b-a22b-fp8", 2)])
def test_every_family_runs_and_reads_no_faster_than_the_datasheet(model: str, tp: int) -> None:
    """A step of one token reads the weights it meets, of each part in its own format; 2,048 tokens compute them at no
    more than the fp8 peak."""
    setup = prepare(scenario_from({
        "workload": {"requests": {"output": [2]}}, "model": model, "max_model_len": 4096,
        "hardware": {"gpu": "h200-sxm", "tensor_parallel": tp, "weight_dtype": "auto"},
        "policy": {"max_num_seqs": 16, "max_num_batched_tokens": 2048}}))  # fmt: skip
    shape, gpu = setup.model, setup.gpu
    parts = shape.part_weights(tp)
    if shape.experts:
        parts["experts"] = parts["experts"] // shape.experts.routed * shape.experts.active
    read = sum(count * shape.weights.part_bytes(part) for part, count in parts.items() if part != "other")
    assert int(setup.cost.dense_ns[0, 1]) * 1e-9 > read / gpu.bandwidth
    assert int(setup.cost.dense_ns[1, 2048]) * 1e-9 > 2048 * shape.flops_per_token(tp) / gpu.peak_flops("fp8")


def test_tensor_parallelism_over_more_than_one_host_is_refused() -> None:
    """A server links eight GPUs; sixteen are joined by a network, whose all-reduce is not modelled."""
    base = {"workload": {"requests": {"output": [2]}}, "max_model_len": 4096, "model": "deepseek-v3"}
    with pytest.raises(ConfigError, match=r"hardware.tensor_parallel: must be <= 8, the GPUs of one host"):
        prepare(scenario_from(base | {"hardware": {"gpu": "h200-sxm", "tensor_parallel": 16, "weight_dtype": "auto"}}))


def test_keys_of_experts_need_experts() -> None:
    base = {"workload": {"requests": {"output": [2]}}, "max_model_len": 4096}
    with pytest.raises(ConfigError, match=r"hardware.expert_skew has no effect on llama-3.1-8b: it has no experts"):
        prepare(scenario_from(base | {"hardware": {"expert_skew": 1.0}}))
    with pytest.raises(ConfigError, match=r"hardware.expert_parallel has no effect on one GPU"):
        scenario_from(base | {"hardware": {"expert_parallel": True}})
    experts = base | {"model": "qwen3-30b-a3b", "hardware": {"gpu": "h200-sxm", "expert_shares": [0.5, 0.5]}}
    with pytest.raises(ConfigError, match=r"hardware.expert_shares: must hold 128 shares"):
        prepare(scenario_from(experts))
    uneven = base | {"model": "qwen1.5-moe-a2.7b", "hardware": {"tensor_parallel": 8, "expert_parallel": True}}
    with pytest.raises(ConfigError, match=r"expert parallelism over 8 GPUs does not divide 60 experts"):
        prepare(scenario_from(uneven))
