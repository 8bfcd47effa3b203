"""Every shipped plan comes out; the Azure plan at its full size where the trace is there."""

from pathlib import Path

import pytest

from simulator.cli.main import main
from simulator.planning.plan import plan
from simulator.planning.spec import load_plan
from simulator.report.plan.data import plain
from simulator.report.plan.page import render_markdown, render_plan

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SMALL = {
    "plan_chat": ["workload.arrivals.requests=2500"],
    "plan_day": ["workload.arrivals.rate=0.3", "workload.prompt.mean=7000", "slo.ttft_p95_s=4.0",
                 "candidates.max_num_batched_tokens=2048"],
    "plan_classes": ["workload.arrivals.requests=1500"],
}


def test_every_shipped_plan_is_tried_here() -> None:
    assert {path.stem for path in SCENARIOS.glob("plan_*.yaml")} == {*SMALL, "plan_azure"}


@pytest.mark.parametrize("name", SMALL)
def test_shipped_plans_give_an_answer(name: str) -> None:
    spec = load_plan(SCENARIOS / f"{name}.yaml", SMALL[name])
    data = plain(plan(spec, jobs=1))
    assert data["feasible"] and data["complete"]
    assert data["answer"]["bought"]["holds"]
    day = data["answer"]["hourly"]
    assert (day is not None) == (name == "plan_day")
    if day is not None:
        assert day["hours"] == 24 and len(day["replicas"]) == 24
        assert 0 < day["replica_hours"] <= day["constant_replica_hours"]
        assert min(day["replicas"]) < max(day["replicas"])  # a quiet night needs less than the busy afternoon
    assert render_plan(data) and render_markdown(data)


@pytest.mark.parametrize("copies", [4, pytest.param(20, marks=pytest.mark.nightly)])
def test_azure_copies(data_dir: Path, copies: int) -> None:
    """H100, L40S and A100 all get an answer; seeds agree to within one replica in ten."""
    path = data_dir / "traces" / "AzureLLMInferenceTrace_conv.csv"
    counts = []
    for seed in (1, 2):
        changes = [f"workload.trace.path={path}", f"workload.trace.copies={copies}", f"seed={seed}",
                   "search.batch_limits=false"]  # fmt: skip
        found = plan(load_plan(SCENARIOS / "plan_azure.yaml", changes), explain=False)
        assert {o.status for o in found.outcomes} == {"feasible"}
        assert {c.fleet.candidate.gpu for c in found.choices} == {"h100-sxm", "l40s", "a100-sxm-80gb"}
        counts.append([o.replicas for o in found.outcomes])
    for a, b in zip(*counts, strict=True):
        assert abs(a - b) <= max(1, round(0.1 * a))


def test_command_writes_a_folder_and_says_when_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file = str(SCENARIOS / "plan_chat.yaml")
    small = [
        "--set",
        "workload.arrivals.requests=1500",
        "--set",
        "candidates.gpu=h100-sxm",
        "--set",
        "prices={h100-sxm: 2.0}",
        "--quick",
        "--jobs",
        "1",
        "--no-cache",
    ]
    assert main(["plan", plan_file, *small, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"plan.json", "report.html", "report.md", "deploy.yaml"}
    assert main(["plan", plan_file, *small, "--set", "slo={tpot_p50_s: 0.0001}"]) == 3
    assert "No fleet among the candidates" in capsys.readouterr().out
    assert main(["plan", plan_file, "--set", "slo={}"]) == 2
    assert "slo" in capsys.readouterr().err
