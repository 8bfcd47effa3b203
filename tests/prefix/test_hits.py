"""Prefix hits of whole runs: a published trace's own ideal, and what a real engine found."""

import json
from pathlib import Path

import pytest

from calibration.measured import load_run
from calibration.predict import predict
from simulator import scenario_from, simulate
from simulator.errors import ConfigError

MEASURED = Path(__file__).resolve().parents[2] / "calibration" / "measurements"
BLOCK, HASH = 16, 512


def ideal(path: Path, rows: int) -> int:
    """[tokens] that a memory without end would find: leading blocks seen before, at least one token left to compute."""
    seen: set[tuple[int, int]] = set()
    hits = 0
    for line in path.read_text().splitlines()[:rows]:
        row = json.loads(line)
        names = [(row["hash_ids"][((j + 1) * BLOCK - 1) // HASH], j) for j in range(row["input_length"] // BLOCK)]
        for name in names[: (row["input_length"] - 1) // BLOCK]:
            if name not in seen:
                break
            hits += BLOCK
        seen.update(names)
    return hits


def found(trace: Path, blocks: int, rows: int) -> int:
    scenario = scenario_from({
        "workload": {"trace": {"path": str(trace), "limit": rows}}, "max_model_len": 131072,
        "kv": {"num_gpu_blocks": blocks, "prefix_caching": True},
    })  # fmt: skip
    result = simulate(scenario)
    assert result.summary["kv"]["prefix_cache"]["found_tokens"] == int(result.requests.found.sum())
    return int(result.requests.found.sum())


def test_mooncake_with_memory_without_end_finds_the_ideal_and_less_with_less(data_dir: Path) -> None:
    trace = data_dir / "traces" / "mooncake_conversation.jsonl"
    if not trace.is_file():
        pytest.skip(f"{trace.name} is not there")
    best = ideal(trace, 1000)
    assert found(trace, 2**20, 1000) == best
    less = [found(trace, blocks, 1000) for blocks in (100_000, 40_000, 10_000)]
    assert best > less[0] > less[1] > less[2] > 0


def test_conversations_of_a_real_engine_find_what_it_found() -> None:
    """vLLM 0.24 on one H200, 60 conversations, memory for all: within 2 % of 595,440 tokens."""
    run = load_run(MEASURED / "llama8b-h200-prefix" / "sessions60")
    assert predict(run).found_tokens == pytest.approx(int(run.requests.cached_tokens.sum()), rel=0.02)


def test_nothing_shared_nothing_found() -> None:
    run = load_run(MEASURED / "llama8b-h200-prefix" / "conv_r10")
    assert run.engine.enable_prefix_caching and int(run.requests.cached_tokens.sum()) == 0
    assert predict(run).found_tokens == 0


def test_a_policy_that_looks_for_nothing_is_refused() -> None:
    data = {"workload": {"requests": {"prompt": 5, "output": [2]}}, "policy": "orca", "kv": {"prefix_caching": True}}
    with pytest.raises(ConfigError, match=r"prefix_caching needs layout: paged .*chunked.*got paged and orca"):
        simulate(scenario_from(data))
