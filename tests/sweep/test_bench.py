"""The benchmark's own truths: its load is what it says, its rows are complete. No time is asserted."""

import heapq
import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from simulator.bench.bench import ENGINE_CASES, case_names, run_bench
from simulator.bench.work import (
    AZURE_OUTPUT,
    AZURE_PROMPT,
    HEAP_SIZE,
    Lengths,
    bare_loop,
    chat_lengths,
    chat_scenario,
    chat_trace,
)
from simulator.cli.main import main
from simulator.errors import UnknownNameError
from simulator.report.schemas import schema_for

FIELDS = {"name", "policy", "replicas", "requests", "seconds", "requests_per_s", "steps_per_s",
          "ratio_to_bare_loop", "peak_mb"}


def test_arrivals_come_at_the_rate_asked_for() -> None:
    lengths = Lengths(np.array([5]), np.array([7]), "test")
    trace = chat_trace(lengths, 100_000, 20.0)
    mean = trace.span_ns / 1e9 / (len(trace) - 1)
    assert abs(mean - 1 / 20) < 4 * (1 / 20) / math.sqrt(len(trace))  # exponential gaps: deviation = mean


def test_fitted_lengths_have_the_quantiles_of_the_trace() -> None:
    lengths = chat_lengths(None)
    for values, (median, p90, longest) in ((lengths.prompt, AZURE_PROMPT), (lengths.output, AZURE_OUTPUT)):
        n = len(values)
        for share, value in ((0.5, median), (0.9, p90)):
            error = math.sqrt(share * (1 - share) / n)
            assert abs(np.mean(values <= value) - share) < 4 * error
        assert values.min() >= 1 and values.max() <= longest
    assert "lognormal" in lengths.source


def test_quoted_quantiles_are_those_of_the_public_file(data_dir: Path) -> None:
    lengths = chat_lengths(data_dir / "traces" / "AzureLLMInferenceTrace_conv.csv")
    for values, (median, p90, longest) in ((lengths.prompt, AZURE_PROMPT), (lengths.output, AZURE_OUTPUT)):
        assert (np.median(values), np.quantile(values, 0.9), values.max()) == (median, p90, longest)


def test_the_bare_loop_does_its_heap_work() -> None:
    rng = np.random.default_rng(1)
    arrival = np.sort(rng.integers(0, 10**12, 500))
    prompt, output = rng.integers(1, 99, 500), rng.integers(1, 99, 500)
    heap, popped = [0] * HEAP_SIZE, 0
    for a, p, o in zip(arrival.tolist(), prompt.tolist(), output.tolist(), strict=True):
        heapq.heappush(heap, a + o * 10_000_000 + p * 30_000)
        popped += heapq.heappop(heap) & 1
    assert bare_loop(arrival, prompt, output) == popped > 0


def test_the_cases_are_the_ones_promised() -> None:
    names = case_names()
    promised = {"chat_10rps", "chat_18rps", "fleet_64", "grid_1000", "first_cold", "first_warm", "first_page"}
    assert promised <= set(names)
    assert [f"growth_1e{k}" for k in range(3, 8)] == [name for name in names if name.startswith("growth")]
    fleet = next(case for case in ENGINE_CASES if case.name == "fleet_64")
    assert chat_scenario(fleet.policy, fleet.replicas).cluster.router == "least_outstanding"
    assert fleet.rate / fleet.replicas == 10


def test_json_rows_are_complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVECAST_DATA", raising=False)
    assert main(["bench", "--json", "--quick", "--only", "growth_1e3"]) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    jsonschema.validate(printed, schema_for("bench"))
    (row,) = printed["cases"]
    assert set(row) >= FIELDS and captured.err == ""
    said = [row[name] for name in ("name", "policy", "replicas", "requests")]
    assert said == ["growth_1e3", "chunked", 1, 1000]
    assert all(row[name] > 0 for name in FIELDS - {"name", "policy"})
    assert "lognormal" in row["lengths"]


def test_an_unknown_case_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown benchmark case 'warp'; known: .*chat_10rps"):
        run_bench(["warp"])
