"""Plans over one recorded trace: what their verdicts say, and which requests no replica takes."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.planning.offered import Offered
from simulator.planning.plan import Plan, plan
from simulator.planning.spec import plan_from
from simulator.planning.traffic import Traffic
from simulator.replicate import varies
from simulator.report.plan.data import plain
from simulator.report.plan.page import render_markdown, render_plan
from simulator.report.plan.words import answer_lines
from simulator.run import simulate
from simulator.scenario.spec import scenario_from


def recorded(folder: Path, **changes: Any) -> Plan:
    """400 Poisson arrivals, 10 a second, for one server that takes 0.05 s for each: M/D/1 at half load."""
    at = np.random.default_rng(3).exponential(0.1, 400).cumsum()
    rows = [f"{time:.6f},1,{output}" for time, output in zip(at, changes.pop("outputs", [50] * 400), strict=True)]
    (folder / "own.csv").write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    spec = {
        "name": "recorded",
        "workload": {"trace": {"path": "own.csv", "time_unit": "s"}},
        "step_s": 0.001,
        "max_model_len": 1000,
        "candidates": {"gpu": "unit", "policy": "orca", "max_num_seqs": 1, "replicas": {"max": 4}},
    } | changes
    return plan(plan_from(spec, base=folder), jobs=1, explain=False)


def waits(folder: Path) -> np.ndarray[Any, Any]:
    """[s] in the queue of one server, by Lindley's recursion."""
    at = np.loadtxt(folder / "own.csv", delimiter=",", skiprows=1)[:, 0]
    found = [0.0]
    for gap in np.diff(at):
        found.append(max(0.0, found[-1] + 0.05 - gap))
    return np.array(found)


@pytest.mark.parametrize(("above", "verdict"), [(1.02, "meets by value"), (4.0, "meets")])
def test_a_value_within_the_limit_is_no_interval_within_it(tmp_path: Path, above: float, verdict: str) -> None:
    """The queue's own p90 by Lindley's recursion decides; 2 % above it no interval of 400 correlated waits ends, four
    times above it every one does."""
    recorded(tmp_path, slo={"queue_p90_s": 1.0})
    p90 = float(np.quantile(waits(tmp_path), 0.9, method="inverted_cdf"))
    data = plain(recorded(tmp_path, slo={"queue_p90_s": above * p90}))
    best = data["recommended"]
    (level,) = best["levels"]
    assert best["replicas"] == 1
    assert level["value"] == pytest.approx(p90, abs=0.002) and level["decided_on"] == level["value"]
    assert level["verdict"] == verdict
    assert (level["high"] is None or level["high"] > level["limit"]) == (verdict != "meets")
    said = "reaches beyond the limit"
    for text in (" ".join(answer_lines(data)), render_plan(data), render_markdown(data)):
        assert (said in text) == (verdict != "meets")
    claim = "the whole interval is still within every limit"
    assert (claim in render_plan(data)) == (verdict == "meets")


def test_requests_that_are_refused_are_counted_and_said(tmp_path: Path) -> None:
    """30 of 400 answers are longer than max_model_len: p90 is the 360th smallest of all waits, those 30 infinite, which
    is a higher one of the others; a limit on p95 is broken by them alone, and so is a share of 93 %."""
    outputs = [2000 if k % 13 == 5 and k < 390 else 50 for k in range(400)]
    assert outputs.count(2000) == 30
    data = plain(recorded(tmp_path, outputs=outputs, slo={"queue_p90_s": 5.0}))
    best = data["recommended"]
    assert best["refused"] == {"requests": 30, "of": 400, "reasons": {"longer than max_model_len": 30}}
    for text in (" ".join(answer_lines(data)), render_plan(data), render_markdown(data)):
        said = html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\xa0", " ").replace("\\", "")
        assert "30 of 400 requests (7.5 %) are refused" in said
        assert "30 longer than max_model_len (1,000 tokens)" in said
    for slo in ({"queue_p95_s": 5.0}, {"attainment": {"share": 0.93, "queue_s": 5.0}}):
        assert recorded(tmp_path, outputs=outputs, slo=slo).best is None
    kept = plain(recorded(tmp_path, outputs=outputs, slo={"attainment": {"share": 0.92, "queue_s": 5.0}}))
    assert kept["recommended"]["levels"][0]["value"] == pytest.approx(0.075)


def test_copies_are_the_same_to_a_run_a_load_test_and_a_plan(tmp_path: Path) -> None:
    """Each is turned by a time of the seed and the replication; the plan's replications are those of the run."""
    at = np.random.default_rng(3).exponential(1.0, 12).cumsum()
    rows = [f"{time:.6f},1,50" for time in at]
    (tmp_path / "own.csv").write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    file = {"path": "own.csv", "time_unit": "s", "copies": 10}
    data = {"name": "copies", "workload": {"trace": file}, "hardware": {"gpu": "unit", "step_s": 0.001},
            "policy": {"name": "orca", "max_num_seqs": 1}}
    scenario = scenario_from(data, tmp_path)
    runs = [simulate(scenario, "reference", replication=k) for k in (0, 1)]
    runs.append(simulate(scenario.updated({"seed": 1}), "reference"))
    for k, traffic in ((0, Traffic(scenario)), (1, Offered(scenario).traffic)):
        assert np.array_equal(runs[k].trace.arrival_ns, traffic.trace(k).arrival_ns)
        assert np.array_equal(runs[k].trace.id, traffic.trace(k).id)
    waits_of = [run.summary["queue_s"]["p99"] for run in runs]
    assert len(set(waits_of)) == 3 and varies(scenario)
    fixed = scenario.updated({"workload.trace.copy_shift_s": 0.1})
    assert not varies(fixed) and not Traffic(fixed).replicable
    assert simulate(fixed, "reference").summary["queue_s"] == simulate(
        fixed.updated({"seed": 1}), "reference").summary["queue_s"]
