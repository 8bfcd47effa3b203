"""A run on other hosts: launches without CUDA graphs wait for the CPU, and the host may decide the verdict."""

from typing import Any

import pytest

from simulator.cost.launch import Launch
from simulator.errors import ConfigError
from simulator.metrics.hosts import host_sentences
from simulator.profiles.engine import load_engine
from simulator.profiles.host import host_times, load_host
from simulator.run import simulate
from simulator.scenario.spec import scenario_from


def scenario(**changes: Any) -> Any:
    arrivals = {"kind": "poisson", "rate": 40.0, "requests": 400}
    data = {"workload": {"arrivals": arrivals, "prompt": 400, "output": 8}, "hardware": "h100-sxm",
            "policy": {"max_num_seqs": 128, "max_num_batched_tokens": 2048}, **changes}
    return scenario_from(data)


def test_launch_bound_load_is_stable_on_a_fast_host_only() -> None:
    """80 prompts of 300 tokens a second are 24,000 tokens a second: the GPU computes 1,024 in 27 ms (38,000 a second),
    a launch of 51 ms lets it compute 20,000 at best, decode steps between not counted."""
    arrivals = {"kind": "poisson", "rate": 80.0, "requests": 2000}
    rows = simulate(scenario(workload={"arrivals": arrivals, "prompt": 300, "output": 8},
                             policy={"max_num_seqs": 128, "max_num_batched_tokens": 1024})).host_sensitivity
    assert [row["host"] for row in rows] == ["fast", "measured", "slow"]
    assert [row["this_run"] for row in rows] == [False, True, False]
    ttft = [row["ttft_mean_s"] for row in rows]
    assert ttft[0] < ttft[1] < ttft[2]
    verdicts = {row["host"]: row["verdict"] for row in rows}
    assert verdicts["fast"] == "stable" and verdicts["slow"] != "stable"
    assert any("the verdict depends on the host" in line for line in host_sentences(rows))


def test_hosts_that_change_nothing_shown_are_said_once() -> None:
    row = {"host": "fast", "this_run": False, "verdict": "stable", "ttft_mean_s": 0.1, "tpot_mean_s": 0.01}
    same = [row, row | {"host": "measured", "this_run": True}, row | {"host": "slow"}]
    assert host_sentences(same) == [
        "host: it does not matter here: TTFT 100 ms, TPOT 10 ms, stable on each of fast, measured, slow"]
    assert "does not matter" not in " ".join(host_sentences([*same, row | {"tpot_mean_s": 0.02}]))


def test_a_named_host_gives_what_the_sensitivity_said_of_it() -> None:
    said = {row["host"]: row for row in simulate(scenario()).host_sensitivity}
    for host in ("fast", "slow"):
        run = simulate(scenario(host=host))
        assert run.summary["ttft_s"]["mean"] == said[host]["ttft_mean_s"]
        assert run.summary["trust"]["mark"] == "scaled", "an assumed host widens the intervals"


def test_cpu_scale_is_the_hosts_speed() -> None:
    fast = load_host("fast").cpu_scale
    named, scaled = simulate(scenario(host="fast")), simulate(scenario(host={"cpu_scale": fast}))
    assert named.requests.last.tolist() == scaled.requests.last.tolist()


def test_runs_inside_the_graphs_say_nothing_of_the_host() -> None:
    prompts = {"arrivals": {"kind": "poisson", "rate": 5.0, "requests": 50}, "prompt": 60, "output": 8}
    assert simulate(scenario(workload=prompts)).host_sensitivity == []
    assert host_sentences([]) == []


def test_a_host_has_no_effect_on_the_textbook_gpu() -> None:
    with pytest.raises(ConfigError, match=r"host.cpu_scale has no effect on gpu: unit, got 2"):
        scenario(hardware="unit", host={"cpu_scale": 2.0})


def test_an_unknown_host_is_named() -> None:
    words = r"host.name: unknown host 'fats' \(did you mean fast\?\); known: fast, measured, slow"
    with pytest.raises(ConfigError, match=words):
        simulate(scenario(host="fats"))


def test_eager_launch_of_a_deeper_model_takes_longer_by_layers() -> None:
    """48 layers against 32 at 0.57 ms a layer: 9 ms more."""
    times = host_times(load_host(), load_engine("vllm-0.24"))
    more = Launch(times, 48, 1, True, False).eager_s() - Launch(times, 32, 1, True, False).eager_s()
    assert more == pytest.approx(16 * times.eager_layer_s)
    assert 0.008 < more < 0.010
