"""Load tests and capacities: hand-worked closed loops, queueing theory, and the very runs of `servecast run`."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration.bench_points import measured_points
from simulator.cli.main import main
from simulator.errors import CalibrationError, ConfigError
from simulator.metrics.intervals import interval
from simulator.planning.capacity import capacity, levels_of
from simulator.planning.load import load_curve
from simulator.planning.passing import clear
from simulator.planning.slo import Target
from simulator.planning.slo_words import slo_of_words
from simulator.planning.spec import SearchSpec
from simulator.planning.statistics import Judged, Judgement
from simulator.report.load.page import render_capacity
from simulator.report.load.words import a_gpu, capacity_lines, fleet_text, load_lines, served_line
from simulator.run import simulate
from simulator.scenario.spec import Scenario, scenario_from

HOME = Path(__file__).parents[2]
STEP = 0.001


def textbook(rate: float, requests: int, output: Any = 10, **more: Any) -> Scenario:
    """One-token prompts on the textbook GPU, a step is 1 ms."""
    arrivals = {"kind": "poisson", "rate": rate, "requests": requests}
    return scenario_from({
        "name": "textbook", "workload": {"arrivals": arrivals, "prompt": 1, "output": output},
        "hardware": {"gpu": "unit", "step_s": STEP}, "engine": {"name": "vllm-0.24", "schedule_ahead": 0}, **more,
    })  # fmt: skip


def test_clients_that_never_wait_are_served_in_lockstep() -> None:
    """N clients on 8 slots, answers of 10 steps of 1 ms: 100 answers a second a client up to 8, no more above."""
    scenario = textbook(100, 800, policy={"name": "chunked", "max_num_seqs": 8})
    data = load_curve(scenario, "concurrency", [1, 4, 8, 16], replications=1)
    served = [row["requests_per_s"] for row in data["points"]]
    assert served == pytest.approx([100, 400, 800, 800], rel=0.02)  # the last group of 800 may be a part of 8
    assert [row["tpot_mean_s"] for row in data["points"]] == pytest.approx([STEP] * 4)
    assert data["points"][3]["e2e_mean_s"] == pytest.approx(2 * data["points"][2]["e2e_mean_s"], rel=0.05)


def test_a_point_is_the_run_of_that_rate() -> None:
    scenario = textbook(100, 400, policy={"name": "chunked", "max_num_seqs": 4})
    data = load_curve(scenario, "rate", [250, 120], replications=1)
    assert [row["rate"] for row in data["points"]] == [120, 250]
    for row in data["points"]:
        summary = simulate(scenario.updated({"workload.arrivals.rate": float(row["rate"])})).summary
        assert row["ttft_p99_s"] == summary["ttft_s"]["p99"] and row["verdict"] == summary["banner"]["verdict"]


def test_a_short_run_serves_less_a_second_than_comes_and_says_why() -> None:
    """The last of 100 answers, of a second each, comes a second after the last of the requests."""
    slots = {"policy": {"name": "chunked", "max_num_seqs": 64}}
    short, long = (load_curve(textbook(10, n, 1000, **slots), "rate", [10], replications=1) for n in (100, 2000))
    row = short["points"][0]
    trace = simulate(textbook(10, 100, 1000, **slots)).trace
    assert row["requests_per_s"] == pytest.approx(100 / (trace.span_ns / 1e9 + 1), rel=0.01)
    assert f"{row['requests_per_s']:.3g}/s of the 10/s that it keeps up with" in served_line(short)
    assert served_line(long) == ""


def test_without_values_the_rates_go_up_to_a_full_engine() -> None:
    """Eight slots, 10 ms an answer: 800/s when requests never run out."""
    data = load_curve(textbook(100, 3200, policy={"name": "chunked", "max_num_seqs": 8}), replications=1)
    rates = [row["rate"] for row in data["points"]]
    assert rates[-2] == pytest.approx(800, rel=0.02) and rates[-1] == pytest.approx(960, rel=0.02)
    assert data["points"][-1]["verdict"] == "overloaded" and data["points"][2]["verdict"] == "stable"
    assert data["carries"] is not None and data["carries"] < rates[-1]


def mm1_rate(service_s: float, limit_s: float) -> float:
    """Rate at which the p95 wait of M/M/1 is the limit: rho exp(-(mu - lambda) t) = 0.05 (Kleinrock 1975, 3.2)."""
    low, high = 0.0, 1 / service_s
    for _ in range(100):
        middle = (low + high) / 2
        beyond = middle * service_s * math.exp(-(1 / service_s - middle) * limit_s) > 0.05
        low, high = (low, middle) if beyond else (middle, high)
    return low


def test_the_capacity_of_one_server_is_that_of_mm1_and_of_two_twice_it() -> None:
    """Behind a random router Poisson arrivals split into Poisson arrivals, so n servers carry n times the rate."""
    scenario = textbook(25, 8_000, {"kind": "exponential", "mean": 20}, max_model_len=100_000,
                        policy={"name": "static", "max_num_seqs": 1}, warmup_fraction=0.1,
                        cluster={"replicas": 1, "router": "random"})  # fmt: skip
    levels = levels_of(scenario, slo_of_words(["p95 queue < 106 ms"]))
    found = capacity(scenario, levels, growth=[100.0])
    theory = mm1_rate(20 * STEP, 0.106)
    assert found["low"] <= theory <= found["high"]
    assert found["breaks"]["level"] == "p95 queue time" and found["breaks"]["value"] > 0.106
    steps = found["steps"]
    assert [step["replicas"] for step in steps[:2]] == [1, 2]
    assert found["span_s"] == pytest.approx(8_000 / found["rate"], rel=0.05)
    assert f"(seen over {found['span_s']:,.0f} s of arrivals)" in capacity_lines(found)[1]
    assert 2 * found["low"] <= steps[1]["rate"] <= 2 * found["high"]
    for step in steps:  # twice as much every month
        assert step["months"]["100"] == pytest.approx(math.log2(step["rate"] / 25))
    assert f"add a replica before {steps[0]['rate']:.3g} requests/s" in render_capacity(found)
    assert "verdict stable" in render_capacity(found)
    more = found | {"traffic": found["rate"] / 0.8}
    assert capacity_lines(more)[1].startswith("It does not carry") and "only 80.0 % of them" in capacity_lines(more)[1]
    assert "verdict stable" not in render_capacity(more)


def test_an_autoscaled_fleet_is_told_as_what_it_is() -> None:
    """Of up to four replicas the schedule wants three for half of the 200 s: two on average, and a GPU's tokens are
    those of two. At rest it is one."""
    auto: dict[str, Any] = {"sync_s": 1, "scale_down_window_s": 0, "start": {"weights_s": 0.001},
                            "schedule": [{"from_s": 0, "to_s": 100, "every_s": 1000, "replicas": 3}]}
    scenario = textbook(2, 400, max_model_len=100, policy={"name": "chunked", "max_num_seqs": 8},
                        cluster={"replicas": 4, "router": "least_outstanding", "autoscale": auto})
    data = load_curve(scenario, "rate", [2], replications=2)
    row = data["points"][0]
    assert (data["least_gpus"], data["gpus"]) == (1, 4) and fleet_text(data) == "1 to 4 x unit"
    assert row["mean_gpus"] == pytest.approx(2, rel=0.1)
    assert a_gpu(row, data) == pytest.approx(10, rel=0.15)  # two requests a second, ten tokens each, on two
    found = capacity(scenario, levels_of(scenario, slo_of_words(["p50 tpot < 3 s"]), SearchSpec(max_rate_scale=2)),
                     explain=False)
    assert found["least_gpus"] == 1 and 1 <= found["mean_replicas"] <= 4


def test_levels_without_a_wall_and_levels_that_nothing_meets() -> None:
    scenario = textbook(100, 500, policy={"name": "chunked", "max_num_seqs": 4})
    none = capacity(scenario, levels_of(scenario, slo_of_words(["p50 tpot < 500 us"])))
    assert none["rate"] is None and none["breaks"]["level"] == "p50 TPOT" and none["steps"] == []
    wide = levels_of(scenario, slo_of_words(["p50 tpot < 3 s"]), SearchSpec(max_rate_scale=2))
    assert not capacity(scenario, wide, explain=False)["wall"]  # 200/s of 400/s: no wall as far as it looked


def test_levels_in_words() -> None:
    slo = slo_of_words(["p99 ttft < 500 ms", "mean e2e (chat) <= 2 min", "ttft_p90_s=0.25",
                        "P99 TTFT in the worst 5 min < 1 s", "95 % ttft < 1 s, e2e < 30 s"])  # fmt: skip
    assert slo.targets == (Target("ttft", 99.0, 0.5), Target("e2e", -1.0, 120.0, "chat"), Target("ttft", 90.0, 0.25),
                           Target("ttft", 99.0, 1.0, None, 300.0))  # fmt: skip
    assert slo.attainment is not None
    assert (slo.attainment.share, slo.attainment.limits) == (0.95, {"ttft": 1.0, "e2e": 30.0})


@pytest.mark.parametrize("text", ["ttft < 1 s", "p99 ttft < 1", "p99 speed < 1 s", "p99 ttft > 1 s", "p999 ttft < 1 s",
                                  "95 % ttft", "p99 ttft < 500 s", ""])  # fmt: skip
def test_words_that_cannot_be_read_are_refused_with_what_can(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        slo_of_words([text])


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in {
        ("load", "chat", "--rates", "1,x"): "--rates 1,x: must be numbers",
        ("load", "chat", "--rates", "0"): "--rates must be numbers of requests/s > 0, got 0",
        ("load", "chat", "--concurrency", "1.5"): "--concurrency must be whole numbers",
        ("load", "chat", "--rates", "1", "--concurrency", "1"): "accepted is one of the two",
        ("load", "batch_8", "--rates", "1"): "all at once",
        ("capacity", "azure_conv", "--set", "workload={requests: {output: [3, 3], arrival_s: [0, 1]}}", "--set",
         "slo={}"): "no service level to meet",
    }.items():  # fmt: skip
        assert main(list(arguments)) == 2
        assert text in capsys.readouterr().err


def test_folders_tables_and_measured_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = HOME / "calibration" / "measurements" / "llama8b-h100" / "conv_r5"
    arguments = ["load", "chat", "--rates", "2,4", "--set", "workload.arrivals.requests=300", "--measured", str(run)]
    assert main([*arguments, "--out", str(tmp_path / "load")]) == 0
    out = capsys.readouterr().out
    table = [line for line in out.splitlines() if line.strip().startswith(("rate ", "2/s", "4/s"))]
    assert len(table) == 3 and max(map(len, table)) <= 100
    data = json.loads((tmp_path / "load" / "load.json").read_text())
    assert [row["source"] for row in data["measured"]] == ["llama8b-h100/conv_r5"]
    rows = (tmp_path / "load" / "load.csv").read_text().splitlines()
    assert len(rows) == 3 and rows[0].startswith("rate,requests_per_s,")
    assert (tmp_path / "load" / "curve.svg").is_file()
    page = (tmp_path / "load" / "report.html").read_text()
    assert "llama8b-h100/conv_r5" in page
    assert page.count("<figure><svg") == 4 and 'class="wide"' not in page  # none is cut off on a narrow screen
    small = ["--set", "workload.arrivals.requests=400", "--quick", "--out", str(tmp_path / "capacity")]
    assert main(["capacity", "chat", "--slo", "p90 ttft < 500 ms", *small]) == 0
    assert "requests/s" in capsys.readouterr().out and (tmp_path / "capacity" / "capacity.json").is_file()
    assert main(["capacity", "chat", "--slo", "p50 tpot < 1 ms", *small[:3]]) == 3
    assert "meets this at no rate" in capsys.readouterr().out


def test_a_measured_run_is_what_its_engine_reported() -> None:
    """conv_r16 of the H100 series: the aggregates in its run.yaml were written down when it ran."""
    (point,) = measured_points([HOME / "calibration" / "measurements" / "llama8b-h100" / "conv_r16"])
    assert point["ttft_mean_s"] == pytest.approx(0.196068, rel=1e-3)
    assert point["ttft_p99_s"] == pytest.approx(0.768802, rel=1e-3)
    assert point["tpot_p50_s"] == pytest.approx(0.022537, rel=1e-3)
    assert point["requests_per_s"] == pytest.approx(14.5691, rel=1e-3)
    assert point["output_tokens_per_s"] == pytest.approx(2196.423, rel=1e-3)


def test_results_of_benchmarks_by_hand(tmp_path: Path) -> None:
    """Keys as vLLM's benchmarks/serve.py, SGLang's bench_serving.py and AIPerf's export schema name them."""
    vllm = {"request_rate": "inf", "max_concurrency": 16, "request_throughput": 3.5, "output_throughput": 700.0,
            "mean_ttft_ms": 80.0, "median_ttft_ms": 75.0, "p99_ttft_ms": 300.0,
            "p99_tpot_ms": 12.5, "p99_e2el_ms": 9000.0}  # fmt: skip
    sglang = {"request_rate": 4.0, "max_concurrency": None, "request_throughput": 3.9, "output_throughput": 800.0,
              "mean_e2e_latency_ms": 2500.0, "p99_itl_ms": 40.0}  # fmt: skip
    aiperf = {"request_throughput": {"unit": "requests/sec", "avg": 2.0},
              "output_token_throughput": {"unit": "tokens/sec", "avg": 410.0},
              "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 45.0, "p99": 200.0},
              "inter_token_latency": {"unit": "ms", "avg": 8.0, "p99": 11.0},
              "input_config": {"loadgen": {"concurrency": 8}}}  # fmt: skip
    (tmp_path / "vllm.json").write_text(json.dumps(vllm))
    (tmp_path / "sglang.jsonl").write_text("\n".join(json.dumps(sglang | {"request_rate": r}) for r in (4.0, 8.0)))
    (tmp_path / "aiperf.json").write_text(json.dumps(aiperf))
    (a,) = measured_points([tmp_path / "vllm.json"])
    assert a["concurrency"] == 16 and "rate" not in a
    assert (a["ttft_p50_s"], a["ttft_p99_s"], a["tpot_p99_s"], a["e2e_p99_s"]) == (0.075, 0.3, 0.0125, 9.0)
    b, c = measured_points([tmp_path / "sglang.jsonl"])
    assert (b["rate"], c["rate"], b["e2e_mean_s"], b["itl_p99_s"]) == (4.0, 8.0, 2.5, 0.04)
    (d,) = measured_points([tmp_path / "aiperf.json"])
    assert (d["concurrency"], d["requests_per_s"], d["output_tokens_per_s"]) == (8.0, 2.0, 410.0)
    assert (d["ttft_p99_s"], d["tpot_mean_s"], d["tpot_p99_s"]) == (0.2, 0.008, 0.011)
    for content in ("{}", "[]", "no JSON", '{"request_throughput": null}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(CalibrationError, match=r"bad\.json"):
            measured_points([tmp_path / "bad.json"])


def test_too_few_requests_are_not_called_unstable() -> None:
    """Eleven requests cannot tell a growing backlog from a burst."""
    few = load_curve(textbook(10.0, 11), "rate", [10.0], replications=1)
    assert few["points"][0]["verdict"] == "undecided"
    assert load_lines(few)[0].startswith("Undecided from 10 requests/s on: too few requests")
    assert "50 of them at least" in load_lines(few)[0] and "copies" in load_lines(few)[0]


def test_a_share_that_misses_is_never_judged_by_one_replication() -> None:
    held = Judged("requests that miss a limit", 0.01, interval([0.0]), "meets")
    assert clear(Judgement((held,), False, ()), 4) is None
    assert clear(Judgement((replace(held, interval=interval([0.05])),), False, ()), 4) == pytest.approx(math.log(5))
