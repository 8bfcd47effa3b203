"""max_model_len: what vLLM refuses to start with is refused here, with the numbers it would print.

vLLM 0.24 (vllm/v1/core/kv_cache_utils.py, check_enough_kv_cache_memory) asks that ceil(max_model_len / block_size)
blocks fit the KV memory; one block is its null block.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from hwprofiles import MODEL_DIR
from simulator.errors import CapacityError, ConfigError
from simulator.profiles.model import load_model
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import scenario_from


def ready(shorten: bool = False, **changes: Any) -> Setup:
    return prepare(scenario_from({"workload": {"requests": {"output": [1]}}, **changes}), shorten)


@pytest.mark.parametrize(("gpu", "tp"), [("l4", 1), ("a10g", 1), ("rtx-4090", 2), ("l40s", 1)])
def test_a_length_is_accepted_exactly_when_one_sequence_of_it_fits(gpu: str, tp: int) -> None:
    hardware = {"gpu": gpu, "tensor_parallel": tp}
    capacity = ready(hardware=hardware, max_model_len=16).capacity
    assert capacity is not None
    most = min((capacity.num_gpu_blocks - 1) * capacity.block_size, 131_072)
    assert ready(hardware=hardware, max_model_len=most).limits.max_model_len == most
    with pytest.raises((CapacityError, ConfigError), match=f"must be <= {most:,}"):
        ready(hardware=hardware, max_model_len=most + 1)


def test_the_refusal_has_the_true_numbers() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB a token, so 131,072 tokens are 16 GiB."""
    with pytest.raises(CapacityError) as error:
        ready(hardware="l4")
    text = str(error.value)
    assert "\n" not in text and "max_model_len" in text and "got 131,072, the positions of llama-3.1-8b" in text
    assert "needs 16.00 GiB of KV per GPU" in text and "1 x L4-24GB" in text


def test_blocks_that_are_given_count_too() -> None:
    """vLLM turns --num-gpu-blocks-override into the memory that it checks: 501 blocks hold 500 x 16 tokens."""
    blocks = {"num_gpu_blocks": 501}
    assert ready(kv=blocks, max_model_len=8000).limits.num_blocks == 500
    with pytest.raises(CapacityError, match=r"must be <= 8,000"):
        ready(kv=blocks, max_model_len=8001)


def test_the_textbook_gpu_has_no_such_bound() -> None:
    assert ready(hardware="unit", max_model_len=10**6, kv={"num_gpu_blocks": 10}).limits.max_model_len == 10**6


@pytest.mark.parametrize(("scaling", "positions"), [
    (None, 32_768),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}, 131_072),
    ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}, 131_072),
    ({"rope_type": "linear", "factor": 2}, 65_536),
    ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32_768),
    ({"rope_type": "default"}, 32_768),
])  # fmt: skip
def test_positions_are_those_of_the_model_with_its_rope_scaling(
    tmp_path: Path, scaling: dict[str, Any] | None, positions: int
) -> None:
    """Qwen2.5's model card: 32,768 positions, 131,072 with the YaRN section it prints; vLLM's rules for the others."""
    config = json.loads((MODEL_DIR / "qwen2.5-7b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"max_position_embeddings": 32_768, "rope_scaling": scaling}))
    assert load_model(path).max_positions == positions
    assert ready(model=str(path), max_model_len=positions).limits.max_model_len == positions
    with pytest.raises(ConfigError, match=f"must be <= {positions:,}, the positions of"):
        ready(model=str(path), max_model_len=positions + 1)


def test_a_chosen_length_fits_even_where_the_predicted_blocks_are_too_many() -> None:
    """Datasheet profiles: KV blocks within 3 % (hwprofiles/uncertainty.yaml: 1 % x 3)."""
    setup = ready(shorten=True, hardware="l4")
    assert setup.scenario.max_model_len == setup.limits.max_model_len
    assert setup.limits.max_model_len % 16 == 0
    assert 0.95 < setup.limits.max_model_len / (setup.limits.num_blocks * 16) <= 1 / 1.03
    assert ready(shorten=True, hardware="h100-sxm").limits.max_model_len == 131_072
    assert ready(shorten=True, hardware="l4", max_model_len=4096).limits.max_model_len == 4096


def test_nothing_to_choose_where_the_weights_do_not_fit() -> None:
    with pytest.raises(CapacityError, match="needs at least"):
        ready(shorten=True, model="llama-3.1-70b", hardware="l4")
