"""Result files of five benchmark clients, two requests each, written out by hand: 0.1 s to the first of 11 tokens, then
20 ms a token, so 0.3 s; the second request 0.5 s after the first with 0.2 s to the first token."""

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.served import read_served
from simulator.errors import CalibrationError

GAPS = [[0.02] * 10, [0.02] * 10]
BENCH = {"model_id": "meta-llama/Llama-3.1-8B-Instruct", "request_rate": "inf", "max_concurrency": None,
         "input_lens": [100, 200], "output_lens": [11, 11], "ttfts": [0.1, 0.2], "itls": GAPS,
         "start_times": [77.0, 77.5], "errors": ["", ""]}
INFERENCE_PERF = [
    {"start_time": 5.0, "end_time": 5.3, "info": {"input_tokens": 100, "output_tokens": 11,
                                                  "output_token_times": [5.1, 5.3]}, "error": None},
    {"start_time": 5.5, "end_time": 5.9, "info": {"input_tokens": 200, "output_tokens": 11,
                                                  "output_token_times": [5.7]}, "error": None},
    {"start_time": 5.6, "end_time": 5.7, "info": {"input_tokens": 9, "output_tokens": 0, "output_token_times": []},
     "error": {"error_type": "Timeout"}}]
GUIDELLM = {"benchmarks": [{"config": {"strategy": {"type_": "constant", "rate": 2}}, "requests": {"successful": [
    {"prompt_tokens": 100, "output_tokens": 11, "request_start_time": 9.0, "request_end_time": 9.3,
     "time_to_first_token_ms": 100.0},
    {"prompt_tokens": 200, "output_tokens": 11, "start_time": 9.5, "end_time": 9.9, "first_token_time": 9.7}],
    "errored": [], "incomplete": []}}]}


def aiperf(start_ns: int, prompt: int, ttft_ms: float, e2e_ms: float, **about: Any) -> dict[str, Any]:
    return {"metadata": {"request_start_ns": start_ns, "benchmark_phase": "profiling", **about}, "error": None,
            "metrics": {"time_to_first_token": {"value": ttft_ms, "unit": "ms"},
                        "output_sequence_length": {"value": 11, "unit": "tokens"},
                        "input_sequence_length": {"value": prompt, "unit": "tokens"},
                        "request_latency": {"value": e2e_ms, "unit": "ms"}}}


AIPERF = [aiperf(10**18, 100, 100.0, 300.0), aiperf(10**18 + 500_000_000, 200, 200.0, 400.0),
          aiperf(10**18, 5, 1.0, 2.0, benchmark_phase="warmup"), aiperf(10**18, 5, 1.0, 2.0, was_cancelled=True)]
FILES = {"vllm.json": json.dumps(BENCH), "inference-perf.json": json.dumps(INFERENCE_PERF),
         "guidellm.json": json.dumps(GUIDELLM), "aiperf.jsonl": "\n".join(map(json.dumps, AIPERF))}


@pytest.mark.parametrize("name", FILES)
def test_times_and_lengths_of_every_client(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    (run,) = read_served(tmp_path / name)
    table = run.table
    assert run.kind == "open" and table.prompt_tokens.tolist() == [100, 200]
    assert table.output_tokens.tolist() == [11, 11]
    assert table.arrival_s.tolist() == pytest.approx([0.0, 0.5], abs=1e-6)
    assert table.ttft_s.tolist() == pytest.approx([0.1, 0.2], abs=1e-6)
    assert table.e2e_s.tolist() == pytest.approx([0.3, 0.4], abs=1e-6)
    assert table.tpot_s.tolist() == pytest.approx([0.02, 0.02], abs=1e-6)


def test_sglang_lines_are_runs_of_their_own(tmp_path: Path) -> None:
    """No start times: all at once without a rate, so many in flight with a concurrency, drawn with a rate."""
    bare = {key: value for key, value in BENCH.items() if key not in ("start_times", "errors", "model_id")}
    lines = [bare, {**bare, "max_concurrency": 1}, {**bare, "request_rate": 4.0}]
    (tmp_path / "sglang.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    once, closed, drawn = read_served(tmp_path / "sglang.jsonl")
    assert once.kind == "open" and once.table.arrival_s.tolist() == [0.0, 0.0] and not once.notes
    assert (closed.kind, closed.width) == ("closed", 1)
    assert drawn.kind == "open" and drawn.table.arrival_s.iloc[1] > 0 and "drawn at 4 requests/s" in drawn.notes[0]


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    failed = {**BENCH, "output_lens": [11, 0], "ttfts": [0.1, 0.0], "itls": [GAPS[0], []]}
    (tmp_path / "vllm.json").write_text(json.dumps(failed))
    (run,) = read_served(tmp_path / "vllm.json")
    assert len(run.table) == 1 and run.notes == ("1 of 2 requests without output left out",)
    assert run.model == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(("content", "message"), [
    ("", "empty file"), ("{", "not JSON"), ("[]", "not a readable benchmark result"),
    (json.dumps({"request_throughput": 1.0, "mean_ttft_ms": 3.0}), "a summary without its requests"),
    (json.dumps({"experiments": []}), "unknown keys"), (json.dumps([1, 2]), "an object is needed, got 1"),
    (json.dumps({key: value for key, value in BENCH.items() if key != "itls"}), "'itls' is missing"),
    (json.dumps({**BENCH, "ttfts": [0.1, float("inf")]}), "times must be finite"),
    (json.dumps({**BENCH, "output_lens": [0, 0]}), "no request that was served")])
def test_other_files_are_refused_with_what_is_read(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(CalibrationError) as caught:
        read_served(tmp_path / "odd.json")
    text = str(caught.value)
    assert message in text and text.startswith(str(tmp_path / "odd.json")) and "accepted: a detailed result of" in text


CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "traces"


@pytest.mark.skipif(not CASES.is_dir(), reason="the collected client files are not in this checkout")
@pytest.mark.parametrize(("name", "runs"), [
    ("07_vllm_bench_detailed.json", 1), ("08_vllm_bench_detailed_no_start.json", 1), ("09_vllm_bench_append.json", 2),
    ("11_sglang_bench.jsonl", 1), ("12_inference_perf_per_request.json", 1), ("14_aiperf_profile_export.jsonl", 1),
    ("23_guidellm.json", 1)])
def test_collected_files_are_read(name: str, runs: int) -> None:
    found = read_served(CASES / name)
    assert len(found) == runs and all(len(run.table) for run in found)
