"""What was simulated as SGLang or TensorRT-LLM is started with: their arguments, or why there are none.

SGLang: docs.sglang.io, Server Arguments (docs/advanced_features/server_arguments.md). TensorRT-LLM 1: `trtllm-serve`
(nvidia.github.io/TensorRT-LLM/commands/trtllm-serve) with the YAML of its LLM API (TorchLlmArgs, KvCacheConfig,
SchedulerConfig), which --extra_llm_api_options reads.
"""

import shlex
from typing import Any, Final

import yaml

from simulator.profiles.engine import load_engine
from simulator.profiles.model import KV_BYTES, dtype_name
from simulator.scenario.setup import Setup

SGLANG: Final = "sglang"
TRTLLM: Final = "tensorrt-llm"
CAPACITY: Final = {"chunked": "MAX_UTILIZATION", "max_utilization": "MAX_UTILIZATION",
                   "guaranteed_no_evict": "GUARANTEED_NO_EVICT"}  # fmt: skip
"""Policy -> SchedulerConfig.capacity_scheduler_policy: by the prompt alone, or with room for the whole answer."""
OPTIONS: Final = "llm_api_options.yaml"


def no_other_command(setup: Setup) -> str:
    """Why SGLang or TensorRT-LLM have no setting for what was simulated; empty where they have."""
    scenario, name = setup.scenario, f"{setup.engine.name} {setup.engine.version}"
    for key, asked in (("engine.speculation", setup.speculation), ("engine.lora", scenario.engine.lora)):
        if asked:
            return f"arguments for {key} are written for vLLM only, not for {name}"
    if setup.limits.long_prefill_token_threshold:
        return f"{name} is not known to have a setting for policy.long_prefill_token_threshold"
    weights = setup.model.weight_format(scenario.hardware.weight_dtype)
    if setup.engine.name == TRTLLM and weights.method == "load" and weights.dtype == "fp8":
        return f"fp8 weights need a checkpoint in FP8 (ModelOpt) for {name}, and {scenario.model} names none"
    return ""


def policies_of(setup: Setup) -> tuple[str, ...]:
    """Policies of the simulator that an engine can be set to."""
    usual = load_engine(setup.scenario.engine.name).policy
    return tuple(CAPACITY) if setup.engine.name == TRTLLM else (usual,)


def other_command(setup: Setup, model: str, share: float) -> str:
    """The command of one replica; `share` of the GPU's memory. `no_other_command` has no reason against it."""
    return (_sglang if setup.engine.name == SGLANG else _trtllm)(setup, model, share)


def _sglang(setup: Setup, model: str, share: float) -> str:
    scenario, limits = setup.scenario, setup.limits
    weights = setup.model.weight_format(scenario.hardware.weight_dtype)
    flags = [
        f"--model-path={model}",
        f"--tp-size={scenario.hardware.tensor_parallel}",
        f"--context-length={limits.max_model_len}",
        f"--max-running-requests={limits.max_num_seqs}",
        f"--chunked-prefill-size={setup.token_budget}",
        "--enable-mixed-chunk",
        f"--mem-fraction-static={share:g}",
        f"--page-size={limits.block_size}",
        f"--dtype={'float16' if weights.dtype == 'fp16' else 'bfloat16'}",
    ]
    if weights.method == "load" and weights.dtype == "fp8":
        flags.append("--quantization=fp8")
    if dtype_name(scenario.hardware.kv_dtype, KV_BYTES) == "fp8":
        flags.append("--kv-cache-dtype=fp8_e4m3")
    if scenario.kv.num_gpu_blocks:
        flags.append(f"--max-total-tokens={scenario.kv.num_gpu_blocks * limits.block_size}")
    if scenario.hardware.expert_parallel:
        flags.append(f"--ep-size={scenario.hardware.tensor_parallel}")
    if not limits.prefix:
        flags.append("--disable-radix-cache")
    if not setup.engine.schedule_ahead:
        flags.append("--disable-overlap-schedule")
    if not scenario.engine.cuda_graphs:
        flags.append("--disable-cuda-graph")
    return "python -m sglang.launch_server " + " \\\n  ".join(shlex.quote(flag) for flag in flags)


def _trtllm(setup: Setup, model: str, share: float) -> str:
    """The file of options, then the command that reads it."""
    scenario, limits = setup.scenario, setup.limits
    flags = [
        model,
        "--backend=pytorch",
        f"--tp_size={scenario.hardware.tensor_parallel}",
        f"--max_batch_size={limits.max_num_seqs}",
        f"--max_num_tokens={setup.token_budget}",
        f"--max_seq_len={limits.max_model_len}",
    ]
    if scenario.hardware.expert_parallel:
        flags.append(f"--ep_size={scenario.hardware.tensor_parallel}")
    flags.append(f"--extra_llm_api_options={OPTIONS}")
    options = yaml.safe_dump(trtllm_options(setup, share), sort_keys=False).rstrip()
    command = " \\\n  ".join(shlex.quote(flag) for flag in flags)
    return f"cat > {OPTIONS} <<'END'\n{options}\nEND\ntrtllm-serve {command}"


def trtllm_options(setup: Setup, share: float) -> dict[str, Any]:
    """The YAML of the LLM API."""
    scenario, limits = setup.scenario, setup.limits
    weights = setup.model.weight_format(scenario.hardware.weight_dtype)
    cache: dict[str, Any] = {"enable_block_reuse": bool(limits.prefix), "free_gpu_memory_fraction": share,
                             "tokens_per_block": limits.block_size}  # fmt: skip
    if dtype_name(scenario.hardware.kv_dtype, KV_BYTES) == "fp8":
        cache["dtype"] = "fp8"
    if scenario.kv.num_gpu_blocks:
        cache["max_tokens"] = scenario.kv.num_gpu_blocks * limits.block_size
    options: dict[str, Any] = {
        "dtype": "float16" if weights.dtype == "fp16" else "bfloat16",
        "kv_cache_config": cache,
        "enable_chunked_prefill": setup.policy.name == "chunked",
        "scheduler_config": {"capacity_scheduler_policy": CAPACITY[setup.policy.name]},
    }
    if not setup.engine.schedule_ahead:
        options["disable_overlap_scheduler"] = True
    if not scenario.engine.cuda_graphs:
        options["cuda_graph_config"] = None
    return options
