"""Fixed batches of 1, 8 and 32 (512 tokens in, 128 out) against a real engine: vLLM 0.24, 8B model, one H100.

Often quoted for batch 8 and 32 over batch 1 are about 6x and 15x; measured on this card were 7.1x and 20.6x. The
quotes come from cards and engines where one sequence leaves less unused: a decode step reads the weights whatever the
batch, so the gain is near the batch size until attention, sampling and CPU time per sequence show. Before any
calibration (datasheet roofline) the ratios must be within 25 % of the measured. The measured batch of 1 contains
about 0.05 s of one-off warm-up of 0.91 s, which makes the measured ratios about 5 % too large.
"""

from pathlib import Path

import pytest
import yaml

from simulator import scenario_from, simulate
from simulator.units import NS_PER_S

RUNS = Path(__file__).resolve().parents[2] / "calibration" / "measurements" / "llama8b-h100"


def measured(batch: int) -> float:
    """Output tokens/s of the real engine."""
    run = yaml.safe_load((RUNS / f"batch_b{batch}" / "run.yaml").read_text())
    return float(run["measured"]["output_token_throughput"])


def predicted(batch: int) -> float:
    """Output tokens/s by the roofline."""
    result = simulate(scenario_from({
        "workload": {"arrivals": {"kind": "burst", "requests": batch}, "prompt": 512, "output": 128},
        "model": "llama-3.1-8b", "hardware": "h100-sxm", "engine": "vllm-0.24", "max_model_len": 9216,
        "policy": {"name": "chunked", "max_num_seqs": 128, "max_num_batched_tokens": 2048}, "cost_model": "roofline",
    }))  # fmt: skip
    return 128 * batch / (float(result.requests.last.max()) / NS_PER_S)


@pytest.mark.parametrize("batch", [8, 32])
def test_relative_throughput(batch: int) -> None:
    assert predicted(batch) / predicted(1) == pytest.approx(measured(batch) / measured(1), rel=0.25)


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_throughput(batch: int) -> None:
    assert predicted(batch) == pytest.approx(measured(batch), rel=0.25)
