"""The shipped questions: each runs from its one command and shows what docs/questions.md says to look at."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.cli.main import main

HOME = Path(__file__).parents[2]
FILES = sorted(path.stem for path in (HOME / "scenarios" / "questions").glob("*.yaml"))
ROW = re.compile(r"\| `servecast plan (\w+)` \| (.+) \|$", re.MULTILINE)
SMALL = {
    "12_fixed_or_autoscaled": ["workload.arrivals.duration_s=7200", "workload.arrivals.period_s=7200"],
    "13_on_demand_or_spot": ["workload.arrivals.requests=8000"],
    "05_prefix_caching": ["workload.trace.copies=3"],
    "10_a_day_with_n_plus_1": ["workload.arrivals.rate=0.2", "workload.prompt.mean=6000",
                               "slo={ttft_p95_s: 4.0, worst_hour: {ttft_p95_s: 5}, worst_5min: {ttft_p50_s: 5}}"],
    "17_three_models": ["search={batch_limits: false, replications: 2}",
                        *(f"deployments.{name}.workload.arrivals.requests=400"
                          for name in ("chat", "autocomplete", "agents"))],
}  # fmt: skip


def answer(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    small = SMALL.get(name, ["workload.arrivals.requests=600"])
    words = [part for assignment in small for part in ("--set", assignment)]
    assert main(["plan", name, *words, "--json", "--quick", "--jobs", "1", "--no-cache", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def rows(capsys: pytest.CaptureFixture[str]) -> Any:
    """Label -> row of a question about a budget."""
    return lambda name: {row["label"]: row for row in answer(name, capsys)["rows"]}


def test_every_question_is_listed_with_its_command() -> None:
    listed = [name for name, _ in ROW.findall((HOME / "docs" / "questions.md").read_text(encoding="utf-8"))]
    assert listed == FILES


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(("01", "04", "09", "15"))])
def test_fleets_to_buy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(name, capsys)
    assert data["feasible"] and data["answer"]["bought"]["holds"]
    if name.startswith("04"):  # 70 billion parameters of 2 bytes are more than the 141 GB of one H200, of 1 byte less
        status = {row["label"]: row["status"] for row in data["candidates"]}
        assert status["h200-sxm"] == "does not fit" and status["h200-sxm, fp8"] != "does not fit"
    if name.startswith("09"):
        names = [level["name"] for level in data["recommended"]["levels"]]
        assert names[0] == "p99 ITL" and names[-1] == "requests that miss a limit (chat)"


def test_fixed_or_autoscaled_and_on_demand_or_spot(capsys: pytest.CaptureFixture[str]) -> None:
    scaled = answer("12_fixed_or_autoscaled", capsys)
    row = scaled["answer"]["autoscaled"]
    assert row["holds"] and row["mean_replicas"] < scaled["recommended"]["replicas"]
    assert "autoscaler" in scaled["export"]
    mixed = answer("13_on_demand_or_spot", capsys)
    spot = mixed["answer"]["spot"]
    assert spot["tried"] and spot["spot"] <= 0.5 * (spot["owned"] + spot["spot"])
    assert not spot["holds"] or spot["usd_per_hour"] < mixed["recommended"]["usd_per_hour"]


def test_eight_gpus_in_each_layout(rows: Any) -> None:
    found = rows("02_tp2_x4_or_tp4_x2")
    assert {(row["replicas"], row["gpus"]) for row in found.values()} == {(4, 8), (2, 8), (1, 8)}
    assert all(row["low"] <= row["carries"] <= row["high"] for row in found.values())


def test_starved_limits_carry_less(rows: Any) -> None:
    found = rows("03_batch_limits")
    assert len(found) == 16
    assert found["h100-sxm, seqs 64, tokens 1024"]["carries"] < found["h100-sxm, seqs 256, tokens 8192"]["carries"]


def test_prefix_caching_carries_more(rows: Any) -> None:
    found = rows("05_prefix_caching")
    assert found["h100-sxm, prefix caching"]["carries"] > found["h100-sxm, no prefix caching"]["carries"]


def test_drafts_carry_more_where_a_promise_on_tpot_binds(rows: Any) -> None:
    """A step reads all weights for one token a sequence or for several (Leviathan et al., ICML 2023, section 3.3)."""
    found = rows("06_speculation")
    drafts = ("no drafts", "1 draft", "4 drafts")
    none, one, four = (found[f"h200-sxm, seqs 128, {words}"]["carries"] for words in drafts)
    assert none < one < four


def test_prefill_and_decode_apart_on_the_same_gpus(rows: Any) -> None:
    """Long prompts: one replica of four that computes them is the wall, two are not; a replica that does both stalls
    its decodes for a prompt of 8,192 tokens and less for one of 512 (Agrawal et al., Sarathi-Serve, OSDI 2024)."""
    found = rows("07_disaggregation")
    assert {row["gpus"] for row in found.values()} == {4}
    name = "h100-sxm, tokens 8192, least outstanding"
    both, one, two = (found[name + more]["carries"] for more in ("", ", 1 for prefill", ", 2 for prefill"))
    assert one < two and found[f"{name}, 1 for prefill"]["breaks"]["level"] == "p95 TTFT"
    assert both < found["h100-sxm, tokens 512, least outstanding"]["carries"]


def test_experts_split_over_gpus_or_dealt_out(rows: Any) -> None:
    """One GPU holds all experts: there is nothing to deal out, and the row says so."""
    found = rows("08_30b_a3b_on_8_h200")
    assert [row["gpus"] for row in found.values()] == [8] * 8
    none = [label for label, row in found.items() if row["carries"] is None]
    assert none == ["h200-sxm, expert parallel"] and "has no effect on one GPU" in found[none[0]]["reason"]
    assert found["h200-sxm, TP4"]["carries"] != found["h200-sxm, TP4, expert parallel"]["carries"]


def test_layers_dealt_out_without_nvlink(rows: Any) -> None:
    """An all-reduce over PCIe costs more than handing hidden states on, where a token may take as long as all stages do
    (Huang et al., GPipe, NeurIPS 2019, section 5: what is sent between stages is little)."""
    found = rows("14_stages_over_pcie")
    assert {row["gpus"] for row in found.values()} == {8}
    assert found["l40s, TP2, PP2, fp8"]["carries"] > found["l40s, TP4, fp8"]["carries"]


def test_a_day_with_one_replica_more(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer("10_a_day_with_n_plus_1", capsys)
    best = data["recommended"]
    assert best["spare"] == 1 and best["replicas"] == best["serving"] + 1
    assert [level["name"] for level in best["levels"]] == [
        "p95 TTFT", "p95 TTFT in the worst 3600 s", "p50 TTFT in the worst 300 s"]  # fmt: skip
    assert data["answer"]["loss"]["modelled"]


def test_continuous_beats_static_at_every_batch(rows: Any) -> None:
    """Yu et al., Orca (OSDI 2022): iteration-level scheduling serves more at equal latency."""
    found = rows("11_static_or_continuous")
    for seqs in (8, 32, 128):
        one, other = (found[f"h100-sxm, {policy}, seqs {seqs}"]["carries"] for policy in ("chunked", "static"))
        assert one > other


def test_three_models_on_one_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    """Fleets of their own, each with a spare replica; the same GPUs as a budget carry all of the traffic at least."""
    data = answer("17_three_models", capsys)
    assert [row["name"] for row in data["deployments"]] == ["chat", "autocomplete", "agents"]
    assert all(row["spare"] == 1 for row in data["deployments"])
    assert data["gpus"] == sum(plan["recommended"]["gpus"] for plan in data["plans"].values())
    shared = answer("17_three_models", capsys, "--set", f"budget.gpus={data['gpus']}")
    assert shared["gpus"] <= data["gpus"] and shared["common"]["carries"] >= 1


def test_one_fleet_for_all_adapters_or_one_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant with a twelfth of the traffic takes a whole GPU at least: twelve fleets are twelve GPUs or more."""
    data = answer("18_tenants_with_adapters", capsys)
    row = data["answer"]["adapters"]
    assert row["apart"]["gpus"] >= 12 > data["recommended"]["gpus"] >= row["without"]["gpus"]
    blocks = {o["label"]: o["candidate"]["max_loras"] for o in data["candidates"]}
    assert blocks == {"h200-sxm, 12 adapter slots": 12, "h200-sxm, 48 adapter slots": 48}


def test_four_bits_where_memory_is_short_and_eight_where_there_is_much_to_compute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """4-bit weights are multiplied in 16 bits: what they gain while weights are read is gone with many sequences
    (Frantar et al., MARLIN, PPoPP 2025, abstract). 70 billion parameters of a byte leave 5.2 GiB of 0.92 x 79.18 on one
    H100, of which a request of 16,384 tokens takes 5.0 (80 layers x 2 x 8 heads x 128 x 2 bytes a token) and vLLM
    more than the rest; of half a byte they leave room."""
    busy = answer("19_4_or_8_bits", capsys)
    assert busy["recommended"]["candidate"]["model"].endswith("-fp8")
    calm = answer("19_4_or_8_bits", capsys, "--set", "workload.arrivals.rate=0.2", "--set", "max_model_len=16384")
    best, status = calm["recommended"], {row["label"]: row["status"] for row in calm["candidates"]}
    assert (best["gpus"], best["label"]) == (1, "h100-sxm, llama-3.1-70b-awq")
    assert status["h100-sxm, llama-3.1-70b-fp8"] == "does not fit"


@pytest.mark.nightly
@pytest.mark.parametrize("name", FILES)
def test_answers_begin_as_documented(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = dict(ROW.findall((HOME / "docs" / "questions.md").read_text(encoding="utf-8")))
    assert main(["plan", name, "--quick"]) == 0
    told = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert said[name] in told, told[:300]
