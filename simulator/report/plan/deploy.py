"""The chosen settings in the words of those who run them: `vllm serve` flags and a Kubernetes Deployment.

Flags are those of vLLM's command line (docs.vllm.ai, `vllm serve`); only what the plan decided is set.
"""

import re
import shlex
from typing import Any, Final

import yaml

from simulator.planning.price import Fleet
from simulator.planning.spec import PlanSpec
from simulator.scenario.setup import Setup

HUGGING_FACE: Final = {
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B-Instruct",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "mistral-7b-v0.3": "mistralai/Mistral-7B-Instruct-v0.3",
    "opt-13b": "facebook/opt-13b",
}
"""Shipped model shape -> a repository that has it (instruction-tuned where there is one)."""
PORT: Final = 8000


def vllm_flags(spec: PlanSpec, setup: Setup) -> list[str]:
    """Arguments after `vllm serve`, one replica; empty for other engines and for the textbook GPU."""
    if setup.gpu.name == "unit" or not setup.engine.name.startswith("vllm"):
        return []
    hardware, limits = setup.scenario.hardware, setup.limits
    share = hardware.gpu_memory_utilization or setup.engine.gpu_memory_utilization
    flags = [
        HUGGING_FACE.get(spec.model, spec.model),
        f"--tensor-parallel-size={hardware.tensor_parallel}",
        f"--max-model-len={limits.max_model_len}",
        f"--max-num-seqs={limits.max_num_seqs}",
        f"--max-num-batched-tokens={limits.max_num_batched_tokens}",
        f"--gpu-memory-utilization={share:g}",
        f"--block-size={limits.block_size}",
        f"--dtype={'float16' if hardware.weight_dtype == 'fp16' else 'bfloat16'}",
    ]
    if hardware.weight_dtype == "fp8":
        flags.append("--quantization=fp8")
    if hardware.kv_dtype == "fp8":
        flags.append("--kv-cache-dtype=fp8")
    if spec.kv.num_gpu_blocks:
        flags.append(f"--num-gpu-blocks-override={spec.kv.num_gpu_blocks}")
    if setup.scenario.engine.schedule_ahead == 0:
        flags.append("--no-async-scheduling")
    if not setup.scenario.engine.cuda_graphs:
        flags.append("--enforce-eager")
    return flags


def vllm_command(spec: PlanSpec, setup: Setup) -> str:
    """The flags as one shell command; empty where there is none."""
    flags = vllm_flags(spec, setup)
    return "vllm serve " + " \\\n  ".join(shlex.quote(flag) for flag in flags) if flags else ""


def kubernetes(spec: PlanSpec, setup: Setup, fleet: Fleet) -> str:
    """Deployment and Service as YAML (spares included); empty where there are no flags."""
    flags = vllm_flags(spec, setup)
    if not flags:
        return ""
    name = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")[:50].strip("-") or "plan"
    labels = {"app.kubernetes.io/name": name}
    container: dict[str, Any] = {
        "name": "vllm",
        "image": f"vllm/vllm-openai:v{setup.engine.version}.0",
        "args": [f"--model={flags[0]}", *flags[1:]],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": fleet.candidate.tensor_parallel}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {"replicas": fleet.replicas, "selector": {"matchLabels": labels}, "template": pod},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"port": PORT, "targetPort": PORT}]},
    }
    return yaml.safe_dump_all([deployment, service], sort_keys=False)
