"""KV block counts that real engines printed: within 1 % on our own runs, 3 % in public logs, 5 % on 24 GB cards.

Own runs: run.yaml of calibration/measurements. Public logs: the line "GPU KV cache size" of vLLM under the settings
given there; where a line names no settings, the server's defaults of that version on that card. Engine versions
without a profile are held to the nearest.
"""

import pytest

from calibration.fit import MEASUREMENTS
from calibration.fit_memory import counted, fit_memory, kv_counts
from simulator.profiles.capacity import kv_capacity
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model

COUNTS = kv_counts(MEASUREMENTS)


@pytest.mark.parametrize("row", [row for _, row in COUNTS.iterrows()],
                         ids=[f"{row.source.partition(': ')[2]}-{row.model}-{row.gpu}" for _, row in COUNTS.iterrows()])
def test_tokens_as_the_engine_printed_them(row) -> None:
    found = counted(row, load_engine(row.engine), MEASUREMENTS)
    assert found.tokens == pytest.approx(row.tokens, rel=row.within_pct / 100)


def test_own_rows_are_the_run_files() -> None:
    """The table has the blocks of each series' run.yaml, null block taken off."""
    own = {row.source.removeprefix("own run: "): row for _, row in COUNTS.iterrows() if row.source.startswith("own")}
    for name, row in own.items():
        text = next((MEASUREMENTS / name).glob("*/run.yaml")).read_text()
        blocks = int(text.split("num_gpu_blocks: ")[1].split()[0])
        assert (blocks - 1) * 16 == row.tokens


def test_shipped_numbers_are_the_fit() -> None:
    fit, engine = fit_memory(MEASUREMENTS), load_engine("vllm-0.24")
    assert engine.workspace_bytes == pytest.approx(fit.workspace_bytes, rel=0.01)
    assert engine.graph_layer_memory_bytes == pytest.approx(fit.graph_layer_bytes, rel=0.01)


def test_weights_of_the_405b_in_fp8_leave_the_attention_in_16_bits() -> None:
    """vLLM's log of eight H100: 57.75 GiB a GPU, peaks of loading included; a Llama with fp8 attention has 47.7."""
    found = load_model("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8").weight_bytes("auto", 8) / 2**30
    assert found == pytest.approx(57.75, rel=0.03)


def test_tensorrt_llm_takes_a_share_of_what_is_free() -> None:
    """A public log of the 8B in fp8 with fp8 KV on an H100: 860,320 tokens at 0.8. One log, one number fitted."""
    found = kv_capacity(load_gpu("h100"), load_engine("tensorrt-llm"), load_model("llama-3.1-8b"), 1, "fp8", "fp8",
                        gpu_memory_utilization=0.8)
    assert found.tokens == pytest.approx(860_320, rel=0.03)


def test_activations_of_a_7b_with_256_sequences() -> None:
    """A public log of vLLM 0.26, Qwen2.5-7B-AWQ: activations of 1.04 GiB: the sampler's, not the forward pass."""
    found = kv_capacity(load_gpu("rtx-4090"), load_engine("vllm-0.24"), load_model("qwen2.5-7b-awq"))
    assert found.activation_bytes / 2**30 == pytest.approx(1.04, rel=0.07)
