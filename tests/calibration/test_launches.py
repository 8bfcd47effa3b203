"""Launches above the largest graph, read from step logs: what the profile has of them, and predictions on the host
that a run had."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from calibration.fit import DEEP_LAUNCHES, MEASUREMENTS, SIXTEEN_BIT_LAUNCHES, runs_named
from calibration.launches import base_launches, launch_scale, layer_launch, mean_launch, own_host, quiet_launch
from calibration.measured import MeasuredRun, load_run, measured_metrics
from calibration.predict import predict, setup_of
from simulator.errors import CalibrationError
from simulator.profiles.engine import load_engine
from simulator.profiles.host import host_times, load_host


@cache
def run_of(name: str) -> MeasuredRun:
    return load_run(MEASUREMENTS / name)


def with_steps(*rows: tuple[float, int, int, float]) -> MeasuredRun:
    """A run whose log has these steps: scheduled, sequences in decode, prompt tokens, output."""
    run = run_of("llama8b-h200-traffic/conv_r10")
    assert run.steps is not None
    made = pd.DataFrame([{
        "t_schedule_s": at, "n_decode": decode, "prefill_tokens": prompt, "t_output_s": out,
        "n_prefill": int(prompt > 0), "decode_context_tokens": 100 * decode,
        "prefill_attention_pairs": prompt * (prompt + 1) // 2} for at, decode, prompt, out in rows])
    return replace(run, steps=made.reindex(columns=run.steps.columns, fill_value=0))


TIMES = load_host().times
SHIPPED = TIMES.eager_cpu_s + 2 * TIMES.sequence_cpu_s
"""[s] launch of two sequences on the shipped host."""
LOG = (
    (0.000, 0, 600, 0.040),   # finds the engine idle: 30 ms, until the next is scheduled
    (0.030, 1, 0, 0.046),     # a decode step
    (0.041, 1, 900, 0.070),   # behind a step in a graph: its output, 0.046, waited 5 ms for this
    (0.047, 2, 1000, 0.100),  # behind another launch: 0.070 - 0.047
    (0.071, 3, 200, 0.110),   # piecewise graphs: none of these
)


def test_launches_of_a_log_by_hand() -> None:
    """(30 + 5 + 23) / 3 ms; the scale is of the one behind a graph alone."""
    run = with_steps(*LOG)
    assert mean_launch([run]) == pytest.approx(0.058 / 3)
    assert mean_launch([run, with_steps(*LOG[:2])]) == pytest.approx((0.058 / 3 + 0.030) / 2)
    assert launch_scale(run) == pytest.approx(0.005 / SHIPPED)


def test_launches_of_several_engines_count_alike_whatever_their_number() -> None:
    """Two runs of one series are averaged first; what the profile adds for two sequences, 0.06 ms, is taken off."""
    run, added = with_steps(*LOG), 2 * TIMES.sequence_cpu_s
    found = base_launches([run, run, replace(run, path=Path("other/conv"))])
    assert found == pytest.approx({"llama8b-h200-traffic": 0.005 - added, "other": 0.005 - added})


def test_typical_launch_is_the_mean_of_five_engines_in_16_bits() -> None:
    """The H100's as fitted before (29.93 ms, on its own batches), and four engines on two H200."""
    found = base_launches(runs_named(MEASUREMENTS, SIXTEEN_BIT_LAUNCHES))
    assert len(found) == 4 and all(0.023 < launch < 0.0285 for launch in found.values())
    mine = host_times(load_host(), load_engine("vllm-0.24")).eager_cpu_s
    assert mine == pytest.approx((0.0299258 + sum(found.values())) / 5, rel=1e-4)


def test_quiet_launches_are_the_shortest_of_a_hundred() -> None:
    """Each launch behind a graph counts, 5 ms of them here; three of those behind others do not."""
    run = with_steps(*LOG)
    assert quiet_launch([run, run]) == pytest.approx(0.005)
    assert quiet_launch([run, replace(run, path=Path("other/conv"), steps=with_steps(
        (0.000, 1, 0, 0.010), (0.001, 1, 900, 0.040)).steps)]) == pytest.approx((0.005 + 0.009) / 2)


def test_a_run_is_judged_on_its_own_host_where_its_log_shows_it() -> None:
    """Launches of 5 ms where the profile has 26.1 make a host of 0.19 times its CPU times; batches show none."""
    host = load_host()
    assert own_host(with_steps(*LOG), host).cpu_scale == pytest.approx(0.005 / SHIPPED)
    assert own_host(with_steps(*LOG), host.scaled(2.0)).cpu_scale == own_host(with_steps(*LOG), host).cpu_scale
    assert own_host(run_of("llama8b-h200-c/batch_b32"), host) == host


def test_logs_without_such_launches_are_refused() -> None:
    with pytest.raises(CalibrationError, match="no launch above the largest graph"):
        launch_scale(with_steps(*LOG[3:]))
    with pytest.raises(CalibrationError, match="plans one step ahead"):
        launch_scale(run_of("llama8b-h100-sync/conv_r10"))
    with pytest.raises(CalibrationError, match="without pipeline stages"):
        launch_scale(run_of("llama8b-h200-pp2/conv_r10"))


def test_launch_of_experts_is_that_of_batches_and_prompts_on_two_hosts() -> None:
    """Ten runs; the dense part is that of 48 layers, 26.04 ms and 0.57 for each above 32."""
    batches = ("batch_b8", "batch_b32", "batch_b128")
    names = [f"qwen3-30b-a3b-h200/{run}" for run in ("batch_b1", *batches, "prefill_b1_p8k")]
    names += [f"qwen3-30b-a3b-h200-b/{run}" for run in (*batches, "pre_p512", "pre_p1024")]
    times = host_times(load_host(), load_engine("vllm-0.24"))
    mine = times.eager_cpu_s + 16 * times.eager_layer_s + 48 * times.eager_expert_layer_s
    assert mine == pytest.approx(mean_launch([run_of(name) for name in names]), rel=0.005)


def test_launch_of_a_layer_is_that_of_lone_prompts_of_deeper_models() -> None:
    """Series means of 34.7 and 52.2 ms (62 layers) and 42.2 (80, 0.801 of 16 bits: 52.6), less 26.04 each: 61.4 ms for
    30 + 30 + 48 layers."""
    times = host_times(load_host(), load_engine("vllm-0.24"))
    found = layer_launch(map(run_of, DEEP_LAUNCHES), times.eager_cpu_s, times.eager_quantised)
    assert found == pytest.approx(61.4e-3 / 108, rel=0.01)
    assert times.eager_layer_s == pytest.approx(found, rel=0.001)


LOADS = ("conv_burst300", "conv_r5", "conv_r10", "conv_r16")
EXPERT_LOADS = ("conv_burst200", "conv_r3", "conv_r6", "conv_r10")
JUDGED = {
    "8-bit weights": ([f"llama8b-h200-fp8-{s}/{load}" for s in ("traffic", "b") for load in LOADS], (4.0, 4.0, 8.0)),
    "experts": ([f"qwen3-30b-a3b-h200-{s}/{load}" for s in ("traffic", "b") for load in EXPERT_LOADS],
                (6.0, 6.0, 12.0)),
    "experts in fp8 blocks": ([f"qwen3-30b-a3b-fp8-h200/{load}" for load in EXPERT_LOADS[:3]], (6.0, 6.0, 12.0)),
    "fp8 blocks by DeepGEMM": ([f"qwen3-8b-fp8-h200/conv_{load}" for load in ("r5", "r10")], (4.0, 4.0, 8.0)),
    "latent attention": (["deepseek-v2-lite-h200/conv_burst200", "deepseek-v2-lite-h200/conv_r10"], (6.0, 6.0, 12.0)),
}


@pytest.mark.parametrize("name", JUDGED)
def test_traffic_meets_its_bars_on_the_host_that_the_run_had(name: str) -> None:
    """TPOT, E2E and TTFT, of the first two over two hosts and four loads each; CPU times as its launches were (0.7
    to 1.2 of the profile's): what is not the host is right. Of the run's times nothing but its launches is used."""
    names, bars = JUDGED[name]
    errors = []
    for run in map(run_of, names):
        found = predict(run, setup_of(run, own_host(run, load_host()))).metrics
        measured = measured_metrics(run)
        errors.append([100 * abs(found[m] / measured[m] - 1) for m in ("tpot_mean_s", "e2e_mean_s", "ttft_mean_s")])
    means = [sum(column) / len(errors) for column in zip(*errors, strict=True)]
    assert all(mean <= bar for mean, bar in zip(means, bars, strict=True)), means
