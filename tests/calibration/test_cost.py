"""Calibrated step times: physical limits, graph padding, launch modes, scaling to GPUs without
measurements."""

from dataclasses import replace

import numpy as np
import pytest

from calibration.fit import MEASUREMENTS
from calibration.fit_steps import gaps_of, gpu_seconds, step_cost
from calibration.measured import load_run
from simulator.cost.calibrated import calibrated_cost
from simulator.cost.gpu_times import gpu_times
from simulator.cost.moe import touched
from simulator.cost.step import Cost
from simulator.errors import ConfigError
from simulator.profiles.engine import list_engines, load_engine
from simulator.profiles.gpu import list_gpus, load_gpu
from simulator.profiles.host import host_times, list_hosts, load_host
from simulator.profiles.model import load_model

MODEL = load_model("llama-3.1-8b")
ENGINE = load_engine("vllm-0.24")


QWEN_MOE = str(MEASUREMENTS / "models" / "qwen3-30b-a3b.config.json")


def cost(
    gpu: str = "h100-sxm",
    tp: int = 1,
    weights: str = "bf16",
    seqs: int = 128,
    model: str = "llama-3.1-8b",
    ahead: int = 1,
) -> Cost:
    return calibrated_cost(
        load_gpu(gpu),
        ENGINE.replace(schedule_ahead=ahead),
        load_model(model),
        tp,
        weights,
        "bf16",
        seqs,
        2048,
    )


@pytest.mark.parametrize("gpu", [gpu.path.stem for gpu in list_gpus() if gpu.mark != "textbook"])
def test_no_step_beats_the_datasheet(gpu: str) -> None:
    """One sequence reads every layer weight and the head; a large batch computes 2 FLOP per weight and
    token."""
    found, device = cost(gpu), load_gpu(gpu)
    read = (MODEL.layer_weights() + MODEL.vocab * MODEL.hidden) * 2 / device.bandwidth
    assert found.dense_ns[0, 1] * 1e-9 > read
    assert found.dense_ns[1, 2048] * 1e-9 > MODEL.flops_per_token() * 2048 / device.peak_flops("bf16")
    assert int(found.slope_fp) / 2**32 * 1e-9 > MODEL.flops_per_token() / device.peak_flops("bf16")


def test_the_head_runs_on_real_rows_and_not_on_the_padding() -> None:
    """vLLM 0.24 v1/worker/gpu_model_runner.py: the model runs on the padded batch, compute_logits on
    hidden_states[logits_indices], a row a sequence. Within one graph the growth from 9 to 16 sequences
    is then that of the head, so it is larger for a vocabulary of 64 times the size."""
    gpu, engine = load_gpu("h100-sxm"), ENGINE.replace(schedule_ahead=1)
    growth = []
    for vocab in (MODEL.vocab, 64 * MODEL.vocab):
        dense = calibrated_cost(gpu, engine, replace(MODEL, vocab=vocab), 1, "bf16", "bf16", 128, 2048).dense_ns[0]
        growth.append(int(dense[16] - dense[9]))
    assert growth[1] > growth[0]


def test_graph_sizes_are_visible_in_decode() -> None:
    """9 to 16 sequences run in the graph of 16: the layers cost the same, only head and sampling grow."""
    dense = cost().dense_ns[0]
    assert dense[16] - dense[9] < 0.01 * dense[9]
    assert dense[17] - dense[16] > 0
    assert np.all(np.diff(cost().dense_ns[0][1:129]) >= 0)


@pytest.mark.parametrize(("seqs", "limit"), [(128, 256), (32, 64), (512, 512)])
def test_eager_above_the_largest_piecewise_graph(seqs: int, limit: int) -> None:
    found = cost(seqs=seqs)
    assert found.eager[1, limit] == 0 and found.eager[1, limit + 1] == 1
    assert found.cpu_ns[1, limit + 1] > 2 * found.cpu_ns[1, limit]


def test_full_graphs_reach_the_batch_limit() -> None:
    assert np.all(cost().eager[0, :129] == 0)


def test_launch_is_slower_with_more_layers() -> None:
    assert cost(model="qwen2.5-14b").cpu_ns[1, 1024] > cost().cpu_ns[1, 1024]


def test_tensor_parallel_halves_the_work_but_not_the_fixed_times() -> None:
    one, two = cost("h200-sxm"), cost("h200-sxm", tp=2)
    assert 0.5 < two.dense_ns[0, 64] / one.dense_ns[0, 64] < 0.8
    assert two.decode_context_fp == pytest.approx(one.decode_context_fp / 2, rel=1e-9)
    assert two.prefill_pair_fp == pytest.approx(one.prefill_pair_fp / 2, rel=1e-9)


def test_launches_in_worker_processes_leave_the_scheduler_free() -> None:
    one, two = cost("h200-sxm"), cost("h200-sxm", tp=2)
    assert two.cpu_ns[1, 1024] < one.cpu_ns[1, 1024] / 5
    assert two.dense_ns[1, 300] * 1e-6 > load_host().times.eager_cpu_worker_s * 1e3, (
        "a launch longer than the GPU's work counts"
    )


def test_a_step_whose_launch_and_gpu_work_are_equal_is_longer_than_both() -> None:
    """Measured alone on two H200, warm: 1,024 tokens 20.4 ms; 512 tokens, nearly all launch, 15.8 to 21.1 ms."""
    two = cost("h200-sxm", tp=2)
    for tokens, low, high in ((1024, 19.4, 21.4), (512, 15.8, 21.1)):
        attention = tokens * (tokens + 1) / 2 * int(two.prefill_pair_fp) / 2**32
        lasts = (int(two.dense_ns[1, tokens]) + int(two.prep_ns[1, tokens]) + attention) * 1e-6
        assert low < lasts < high, tokens


def test_short_prompts_on_two_gpus_wait_for_their_piecewise_launch() -> None:
    """Measured: 64, 128 and 256 tokens alone take 7.1, 7.0 and 7.3 ms whatever the GPU computes. The goal for a lone
    request is a tenth."""
    two = cost("h200-sxm", tp=2)
    for tokens, lasted in ((64, 7.1), (128, 7.0), (256, 7.3)):
        assert (two.dense_ns[1, tokens] + two.prep_ns[1, tokens]) * 1e-6 == pytest.approx(lasted, rel=0.1)


def test_older_model_runner_launches_longer_in_workers() -> None:
    """Measured on two H200: a lone 512-token prompt of Qwen2.5-14B takes 33 to 38 ms, of Llama-3.1-8B 16 to 18; 16 more
    layers explain 9 ms of it."""
    times = host_times(load_host(), ENGINE)
    models = ("qwen2.5-14b", "llama-3.1-8b")
    old, new = (cost("h200-sxm", tp=2, model=model).dense_ns[1, 512] * 1e-6 for model in models)
    assert 33 < old < 41 and 15 < old - new < 22 and 16 * times.eager_layer_s * 1e3 < 10


def test_eight_bit_kv_is_read_faster_but_not_twice_as_fast() -> None:
    """Measured: 64 sequences of 4k with 8-bit KV gain less than the half of the bytes."""
    def context(kv: str) -> int:
        return int(calibrated_cost(load_gpu("h200-sxm"), ENGINE, MODEL, 1, "bf16", kv, 128, 2048).decode_context_fp)

    assert 0.5 < context("fp8") / context("bf16") < 1.0


def test_eight_bit_weights_read_half_as_much() -> None:
    assert 0.5 < cost(weights="fp8").dense_ns[0, 1] / cost().dense_ns[0, 1] < 0.75


def test_gpus_without_measurements_are_scaled_and_say_so() -> None:
    times, reference = gpu_times(load_gpu("b200")), gpu_times(load_gpu("h100-sxm"))
    ratio = load_gpu("b200").memory_gbps / load_gpu("h100-sxm").memory_gbps
    assert times.decode_bandwidth == pytest.approx(reference.decode_bandwidth * ratio)
    assert times.marks["decode_bandwidth"] == "scaled from H100-SXM5-80GB"
    assert reference.marks["decode_bandwidth"] == "fitted"


def test_a_host_half_as_fast_doubles_cpu_times_and_nothing_else() -> None:
    """The GPU's times do not depend on the host; without workers no launch hides among them."""
    plain, slow = (
        calibrated_cost(load_gpu("h100-sxm"), ENGINE, MODEL, 1, "bf16", "bf16", 128, 2048, host)
        for host in (load_host(), load_host("measured").scaled(2.0))
    )
    for name in ("cpu_ns", "prep_ns", "cpu_seq_ns", "prep_seq_ns", "frontend_in_ns", "frontend_out_ns"):
        assert np.allclose(getattr(slow, name), 2 * np.asarray(getattr(plain, name)), atol=2), name
    assert np.array_equal(slow.dense_ns[:, :257], plain.dense_ns[:, :257])
    stall = round(load_host().times.eager_stall_s * 1e9)
    assert np.all(abs(slow.dense_ns[1, 257:] - plain.dense_ns[1, 257:] - stall) <= 1)


def test_shipped_hosts_are_fast_measured_and_slow_with_sources() -> None:
    hosts = list_hosts()
    assert [host.name for host in hosts] == ["fast", "measured", "slow"]
    assert [host.mark for host in hosts] == ["assumed", "measured", "assumed"]
    assert all(all(host.sources.values()) for host in hosts)
    assert 0.35 <= hosts[0].cpu_scale <= 0.5, "what public runs of another host ask for"


@pytest.mark.parametrize("engine", list_engines(), ids=lambda engine: engine.path.stem)
def test_every_engine_profile_makes_a_cost(engine: object) -> None:
    found = calibrated_cost(load_gpu("h100-sxm"), engine, MODEL, 1, "bf16", "bf16", 64, 2048)  # type: ignore[arg-type]
    assert np.all(found.prep_ns <= found.cpu_ns)


def test_bad_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be >= 1, got 0 and 2048"):
        calibrated_cost(load_gpu("h100-sxm"), ENGINE, MODEL, 1, "bf16", "bf16", 0, 2048)
    with pytest.raises(ConfigError, match="tensor_parallel 3 does not divide"):
        cost(tp=3)


def test_experts_touched_by_few_and_many_tokens() -> None:
    """One token touches its own 8; by hand for two tokens: 8 + 8 x 120/128; many touch all. Random draws agree."""
    experts = load_model(QWEN_MOE).experts
    assert experts is not None and (experts.routed, experts.active) == (128, 8)
    counts = touched(np.array([1.0, 2.0, 32.0, 4096.0]), experts)
    assert counts[:2] == pytest.approx([8.0, 15.5]) and counts[3] == pytest.approx(128.0)
    rng = np.random.default_rng(5)
    drawn = [len({e for _ in range(32) for e in rng.choice(128, 8, replace=False)}) for _ in range(200)]
    assert counts[2] == pytest.approx(np.mean(drawn), rel=0.01)


def test_experts_read_no_more_than_they_weigh_and_no_less_than_the_bandwidth_allows() -> None:
    """128 sequences of Qwen3-30B-A3B touch every expert: 57 GB of experts and attention at 4.8 TB/s are 11.9 ms."""
    model, device = load_model(QWEN_MOE), load_gpu("h200-sxm")
    step = cost("h200-sxm", model=QWEN_MOE).dense_ns[0] * 1e-9
    weights = (model.layer_weights() + model.vocab * model.hidden) * 2 / device.bandwidth
    assert weights < step[128] < 2 * weights
    assert step[1] < 0.4 * step[32], "one token reads a sixteenth of the experts"


@pytest.mark.parametrize(("sequences", "milliseconds", "context"), [(1, 4.33, 577), (8, 9.3, 4615), (32, 15.8, 18461)])
def test_decode_steps_of_a_mixture_of_experts(sequences: int, milliseconds: float, context: int) -> None:
    """Output gaps of vLLM 0.24 on one H200; nothing was fitted on them: the experts' times are public operator data."""
    found = cost("h200-sxm", model=QWEN_MOE)
    attention = (context * int(found.decode_context_fp) + sequences * int(found.decode_seq_fp)) / 2**32
    assert (int(found.dense_ns[0, sequences]) + attention) * 1e-6 == pytest.approx(milliseconds, rel=0.1)


def test_decode_attention_is_longer_beside_prefill_but_for_latent_rows() -> None:
    """A public table of vLLM 0.19's layers has 1.6 and 2.0 times beside chunks of prefill (RTX PRO 6000 and 4090,
    casys-kaist/LLMServingSim 5daddb2): output gaps of the H200 1.5. Latent attention has a kernel for each."""
    found = cost("h200-sxm")
    assert 1.3 < 1 + int(found.beside_context_fp) / int(found.decode_context_fp) < 1.7
    latent = calibrated_cost(load_gpu("h200-sxm"), ENGINE, load_model("deepseek-v2-lite"), 1, "bf16", "bf16", 128, 2048)
    assert int(latent.beside_context_fp) == 0 < int(latent.decode_context_fp)


def test_steps_of_decodes_beside_full_chunks_are_those_of_a_burst_that_was_not_fitted() -> None:
    """Output gaps of llama8b-h200-f/conv_burst300 deep in the burst, within 2.5 % in the median whether few or many
    sequences decode beside 2,048 tokens; without what decode attention takes more there, many are 4 % short."""
    run = load_run(MEASUREMENTS / "llama8b-h200-f" / "conv_burst300")
    table = gaps_of([run])
    table = table[table.kind == 1]
    found = step_cost(run, load_gpu("h200-sxm"))
    few, many = table.n_decode <= 64, table.n_decode > 96
    assert few.sum() > 20 and many.sum() > 50
    for chosen in (few, many):
        ratio = gpu_seconds(found, table[chosen]) / table.gap_s[chosen]
        assert 0.975 < float(ratio.median()) < 1.025
    less = found._replace(beside_context_fp=np.int64(0))
    assert float((gpu_seconds(less, table[many]) / table.gap_s[many]).median()) < 0.97
