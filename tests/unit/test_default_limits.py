"""What a policy may hold where nothing is set: watermarks and token budgets of the engines named."""


import pytest

from simulator.run import simulate
from simulator.scenario.setup import prepare
from simulator.scenario.spec import scenario_from
from simulator.state import FINISHED, REJECTED_BUDGET


@pytest.mark.parametrize(("policy", "usable"), [("chunked", 999), ("vllm_v0", 1000)])
def test_the_watermark_is_a_share_of_all_blocks(policy: str, usable: int) -> None:
    """int(0.01 x 1,000) = 10 in both engines; V1 keeps one block (block_pool.null_block) to itself, v0 none."""
    base = {"workload": {"requests": {"output": [2]}}, "hardware": "unit", "kv": {"num_gpu_blocks": 1000}}
    limits = prepare(scenario_from(base | {"policy": {"name": policy, "watermark": 0.01}})).limits
    assert (limits.num_blocks, limits.watermark_blocks) == (usable, 10)


def test_the_watermark_of_a_share_of_all_blocks_is_rounded_down() -> None:
    """vLLM 0.6 block_manager.py: self.watermark_blocks = int(watermark * num_gpu_blocks); 0.01 x 1,050 -> 10."""
    base = {"workload": {"requests": {"output": [2]}}, "hardware": "unit", "kv": {"num_gpu_blocks": 1050}}
    assert prepare(scenario_from(base | {"policy": {"name": "vllm_v0"}})).limits.watermark_blocks == 10


def test_budget_of_v0_defaults_to_2048_for_a_shorter_model() -> None:
    """vLLM 0.6 config.py, SchedulerConfig: max(max_model_len, 2048)."""
    base = {"workload": {"requests": {"output": [2]}}, "hardware": "unit", "max_model_len": 600}
    assert prepare(scenario_from(base | {"policy": "vllm_v0"})).limits.max_num_batched_tokens == 2048


@pytest.mark.parametrize(("policy", "blocks"), [("chunked", 0), ("vllm_v0", 10)])
def test_default_watermarks(policy: str, blocks: int) -> None:
    """vLLM 0.24 SchedulerConfig.watermark is 0; the block managers of v0 had 0.01."""
    base = {"workload": {"requests": {"output": [2]}}, "hardware": "unit", "kv": {"num_gpu_blocks": 1000}}
    assert prepare(scenario_from(base | {"policy": policy})).limits.watermark_blocks == blocks


def test_a_policy_that_does_not_chunk_takes_prompts_up_to_max_model_len() -> None:
    """vLLM v0 without chunked prefill: max_num_batched_tokens defaults to max(max_model_len, 2048)."""
    base = {"workload": {"requests": {"output": [2], "prompt": 5000}}, "hardware": "unit", "max_model_len": 6000}
    assert prepare(scenario_from(base | {"policy": "vllm_v0"})).limits.max_num_batched_tokens == 6000
    done = simulate(scenario_from(base | {"policy": "vllm_v0"}), "reference")
    assert done.requests.status.tolist() == [FINISHED]
    short = base | {"policy": {"name": "vllm_v0", "max_num_batched_tokens": 4000}}
    assert simulate(scenario_from(short), "reference").requests.status.tolist() == [REJECTED_BUDGET]
