"""The chosen settings in the words of those who run them: `vllm serve` flags and a Kubernetes Deployment.

Flags are those of vLLM's command line (docs.vllm.ai, `vllm serve`), of SGLang and TensorRT-LLM in plan/engines.py. A
command is printed only where it starts the engine that was simulated; else there is the reason why not.
"""

import json
import shlex
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.planning.price import Fleet
from simulator.planning.spec import PlanSpec
from simulator.planning.unlike import BESIDE, OWN, pool_label
from simulator.profiles.engine import load_engine
from simulator.profiles.model import KV_BYTES, dtype_name, repository
from simulator.profiles.speculation import NGRAM
from simulator.report.plan.engines import SGLANG, TRTLLM, no_other_command, other_command, policies_of
from simulator.report.plan.names import service_name
from simulator.scenario.setup import Setup

HUGGING_FACE: Final = {
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "mistral-7b-v0.3": "mistralai/Mistral-7B-Instruct-v0.3",
}
"""Shipped model shape -> the instruction-tuned repository of it; all others are of the repository they name."""
CHECKPOINTS: Final = {
    "int8": "a checkpoint in INT8 (compressed-tensors, W8A8)",
    "int4": "a checkpoint in 4 bits, group size 128 (AWQ or GPTQ)",
    "fp4": "a checkpoint in NVFP4 (ModelOpt or compressed-tensors)",
}
"""Weight format -> the kind of checkpoint vLLM needs for it; it cannot make these while it loads."""
VLLM: Final = "vllm"
ENGINES: Final = (VLLM, SGLANG, TRTLLM)
PORT: Final = 8000
TOKEN_SECRET: Final = "hf-token-secret"
"""Secret of the cluster with a token of Hugging Face, named as in vLLM's manifests (docs.vllm.ai, Using Kubernetes);
optional, for most repositories need none."""
GATED: Final = ("meta-llama/", "google/", "mistralai/", "CohereForAI/")
"""Owners on Hugging Face whose weights come, in part or all, only to those who have accepted a licence."""
PINNED: Final = ("pods have to be pinned to nodes with their own GPU, by a nodeSelector of the label that your nodes "
                 "have for it (nvidia.com/gpu.product where GPU feature discovery sets it)")
"""What only the cluster knows of unlike replicas (github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery)."""


def no_command(spec: PlanSpec, setup: Setup) -> str:
    """Why there is no command that starts what was simulated; empty where there is one."""
    scenario, name = setup.scenario, f"{setup.engine.name} {setup.engine.version}"
    if setup.gpu.name == "unit":
        return "a textbook GPU is nothing to start an engine on"
    if setup.engine.name not in ENGINES:
        return f"commands are written for vLLM, SGLang and TensorRT-LLM only, not for {name}"
    if setup.pools:  # those of unlike replicas are asked one by one (export_both)
        return "commands are written for replicas that serve requests whole, not for prefill and decode pools"
    if setup.policy.name not in policies_of(setup):
        return f"{name} schedules by {' or '.join(policies_of(setup))}, it has no policy {setup.policy.name}"
    if scenario.kv.layout != "paged":
        return f"{name} has paged KV memory, not {scenario.kv.layout}"
    if setup.engine.schedule_ahead not in (0, 1):
        return f"{name} plans at most one step ahead, not {setup.engine.schedule_ahead}"
    for knob in ("watermark", "reserve_full_prompt"):
        if getattr(scenario.policy, knob) is not None:
            return f"{name} is not known to have a setting for policy.{knob}"
    if setup.gpu.vendor != "NVIDIA":
        return f"commands are written for NVIDIA GPUs only, not for {setup.gpu.name}"
    weights = setup.model.weight_format(scenario.hardware.weight_dtype)
    if weights.method == "load" and weights.dtype in CHECKPOINTS:
        return f"{weights.dtype} weights need {CHECKPOINTS[weights.dtype]}, and {scenario.model} names none"
    drafts = scenario.engine.speculation
    own = "model" if spec.model == scenario.model else "candidates.model"
    for model, key in ((scenario.model, own), (drafts.draft if drafts else None, "engine.speculation.draft")):
        if model is not None and _checkpoint(model) is None:
            return (f"{model} is a shape, not the folder of a checkpoint; set {key} to the folder that has its weights "
                    "beside its config.json")
    return "" if setup.engine.name == VLLM else no_other_command(setup)


def _checkpoint(model: str) -> str | None:
    """What to serve: a repository or a folder with weights; None for a file that holds a shape alone."""
    path = Path(model)
    if model in HUGGING_FACE:
        return HUGGING_FACE[model]
    if path.suffix == ".json":
        return str(path.parent) if path.name == "config.json" else None
    return model if "/" in model or path.is_dir() else repository(model)


def vllm_flags(spec: PlanSpec, setup: Setup) -> list[str]:
    """Arguments after `vllm serve`, one replica; empty where `no_command` has a reason, and for other engines."""
    model = _checkpoint(setup.scenario.model)
    if model is None or setup.engine.name != VLLM or no_command(spec, setup):
        return []
    scenario, limits = setup.scenario, setup.limits
    hardware, usual = scenario.hardware, load_engine(scenario.engine.name)
    weights = setup.model.weight_format(hardware.weight_dtype)
    share = _share(setup)
    flags = [
        model,
        f"--tensor-parallel-size={hardware.tensor_parallel}",
        f"--max-model-len={limits.max_model_len}",
        f"--max-num-seqs={limits.max_num_seqs}",
        f"--max-num-batched-tokens={setup.token_budget}",
        f"--gpu-memory-utilization={share:g}",
        f"--block-size={limits.block_size}",
        f"--dtype={'float16' if weights.dtype == 'fp16' else 'bfloat16'}",
    ]
    if weights.method == "load" and weights.dtype == "fp8":
        flags.append("--quantization=fp8")
    if dtype_name(hardware.kv_dtype, KV_BYTES) == "fp8":
        flags.append("--kv-cache-dtype=fp8")
    if limits.long_prefill_token_threshold:
        flags.append(f"--long-prefill-token-threshold={limits.long_prefill_token_threshold}")
    if scenario.kv.num_gpu_blocks:
        flags.append(f"--num-gpu-blocks-override={scenario.kv.num_gpu_blocks}")
    if hardware.pipeline_parallel > 1:
        flags.append(f"--pipeline-parallel-size={hardware.pipeline_parallel}")
    if hardware.expert_parallel:
        flags.append("--enable-expert-parallel")
    if scenario.kv.prefix_caching is not None:
        flags.append("--enable-prefix-caching" if scenario.kv.prefix_caching else "--no-enable-prefix-caching")
    if scenario.kv.offload:
        flags.append(f"--kv-offloading-size={scenario.kv.offload.gib * hardware.tensor_parallel:g}")
    if setup.engine.schedule_ahead != usual.schedule_ahead:
        flags.append("--async-scheduling" if setup.engine.schedule_ahead else "--no-async-scheduling")
    if not scenario.engine.cuda_graphs:
        flags.append("--enforce-eager")
    lora = scenario.engine.lora
    if lora:
        flags += ["--enable-lora", f"--max-loras={lora.max_loras}", f"--max-lora-rank={lora.rank}"]
    if setup.speculation:
        flags.append(f"--speculative-config={speculative_config(setup)}")
    return flags


def speculative_config(setup: Setup) -> str:
    """The JSON of --speculative-config; n-grams of 2 to 4 tokens, since their drafts are given and not searched."""
    drafts, spec = setup.speculation, setup.scenario.engine.speculation
    assert drafts and spec
    config: dict[str, Any] = {"method": drafts.method, "num_speculative_tokens": drafts.tokens}
    if spec.draft:
        config["model"] = _checkpoint(spec.draft)
    if drafts.method == NGRAM:
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    return json.dumps(config)


def command_notes(setup: Setup, fleet: Fleet) -> list[str]:
    """What to know of the command before it is run."""
    notes = []
    weights = setup.model.weight_format(setup.scenario.hardware.weight_dtype)
    if weights.method == "load":
        notes.append(
            "weights in fp8: --quantization=fp8 makes them from the 16-bit checkpoint while it loads; a checkpoint in "
            "fp8 needs no such flag"
        )
    elif weights.quantised:
        notes.append(f"the checkpoint is quantised, {weights.text()}: the engine reads that from its config.json")
    if setup.scenario.engine.lora:
        notes.append("every adapter is named with --lora-modules NAME=PATH")
    if setup.speculation:
        notes.append(
            f"the plan holds where a step with drafts yields {setup.speculation.tokens_per_step:.3g} tokens on "
            "average; vLLM logs that as the mean acceptance length"
        )
    model = _checkpoint(setup.scenario.model) or ""
    if _gated(model):
        notes.append(_token_note(model, setup.engine.name == VLLM))
    if setup.engine.name != VLLM:
        notes.append(f"arguments as {setup.engine.name} documents them; its step times here are taken over from vLLM, "
                     "and no manifest is written for it")
    elif fleet.replicas > 1:
        notes.append(routing_note(fleet))
    return notes


def _repository(model: str) -> bool:
    """Whether it is fetched from Hugging Face: `owner/name`, no folder."""
    return model.count("/") == 1 and not model.startswith((".", "/")) and not Path(model).is_dir()


def _gated(model: str) -> bool:
    """Whether Hugging Face may ask who fetches it."""
    return _repository(model) and model.startswith(GATED)


def _token_note(model: str, manifest: bool) -> str:
    """How an engine gets weights that are not for everybody."""
    pods = (f"; the pods take it from the secret {TOKEN_SECRET}: kubectl create secret generic {TOKEN_SECRET} "
            "--from-literal=token=$HF_TOKEN") if manifest else ""
    return (f"the weights of {model} may be open only to those who have accepted its licence on huggingface.co: the "
            f"engine then needs an access token in HF_TOKEN{pods}")


def routing_note(fleet: Fleet) -> str:
    """That a Service does not route as the plan does."""
    return f"the Service of deploy.yaml (written with --out) {_spreads(fleet)}"


def _spreads(fleet: Fleet) -> str:
    return ("spreads connections as the cluster does (kube-proxy: at random), "
            f"not by the planned {fleet.candidate.router.replace('_', ' ')} router; put a router that does in "
            "front of the pods")


def vllm_command(spec: PlanSpec, setup: Setup) -> str:
    """The flags as one shell command; empty where there is none."""
    flags = vllm_flags(spec, setup)
    return "vllm serve " + " \\\n  ".join(shlex.quote(flag) for flag in flags) if flags else ""


def command(spec: PlanSpec, setup: Setup) -> str:
    """The command that starts one replica of whichever engine was simulated; empty where `no_command` has a reason."""
    if setup.engine.name == VLLM:
        return vllm_command(spec, setup)
    model = _checkpoint(setup.scenario.model)
    return "" if model is None or no_command(spec, setup) else other_command(setup, model, _share(setup))


def _share(setup: Setup) -> float:
    """Of the GPU's memory that the engine takes."""
    return setup.scenario.hardware.gpu_memory_utilization or setup.engine.gpu_memory_utilization


class _Plain(yaml.SafeDumper):
    """YAML without anchors: what stands twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def export_both(spec: PlanSpec, setup: Setup, fleet: Fleet) -> dict[str, Any]:
    """Commands and manifests of unlike replicas, or the `reason` why there are none."""
    other, own = fleet.candidate.beside, fleet.candidate.own(fleet.replicas)
    assert other is not None
    pools = {BESIDE: (setup.pools[BESIDE], other.replicas, other.gpus // other.replicas, other.kind)}
    if own:
        pools = {OWN: (setup.pools[OWN], own, fleet.candidate.gpus, fleet.candidate.kind), **pools}
    for pool, _, _, kind in pools.values():
        reason = no_command(spec, pool)
        if reason:
            return {"reason": f"{kind}: {reason}"}
    commands = [f"# {count} x {kind}\n{command(spec, pool)}" for pool, count, _, kind in pools.values()]
    notes = [note for pool, *_ in pools.values() for note in command_notes(pool, fleet)]
    notes += [PINNED] if setup.engine.name == VLLM else []
    found: dict[str, Any] = {"command": "\n\n".join(commands), "notes": list(dict.fromkeys(notes))}
    if setup.engine.name != VLLM:
        return found
    name = service_name(spec.name)
    parts = []
    for pool_name, (pool, count, gpus, kind) in pools.items():
        labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": pool_name}
        made = _deployment(spec, pool, service_name(pool_label(name, pool_name)), labels, count, gpus)
        parts.append(f"# {kind}: {PINNED}.\n{made}")
    return found | {"vllm": found["command"], "kubernetes": "---\n".join([*parts, _service(name, fleet)])}


def kubernetes(spec: PlanSpec, setup: Setup, fleet: Fleet) -> str:
    """Deployment and Service as YAML (spares included); empty where there are no flags."""
    name = service_name(spec.name)
    labels = {"app.kubernetes.io/name": name}
    deployment = _deployment(spec, setup, name, labels, fleet.replicas, fleet.candidate.gpus)
    return f"{deployment}---\n{_service(name, fleet)}" if deployment else ""


def _deployment(spec: PlanSpec, setup: Setup, name: str, labels: dict[str, str], replicas: int, gpus: int) -> str:
    """A Deployment as YAML; empty where there are no flags."""
    flags = vllm_flags(spec, setup)
    if not flags:
        return ""
    version = setup.engine.version
    container: dict[str, Any] = {
        "name": "vllm",
        "image": f"vllm/vllm-openai:v{version if version.count('.') > 1 else version + '.0'}",
        "args": [f"--model={flags[0]}", *flags[1:]],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if _repository(flags[0]):
        secret = {"name": TOKEN_SECRET, "key": "token", "optional": True}
        container["env"] = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
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
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod},
    }
    note = f"# {_token_note(flags[0], True)}.\n" if _gated(flags[0]) else ""
    return f"{note}{_yaml(deployment)}"


def _service(name: str, fleet: Fleet) -> str:
    """The Service in front of all pods, with what it does otherwise than the plan."""
    labels = {"app.kubernetes.io/name": name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"port": PORT, "targetPort": PORT}]},
    }
    note = f"# This Service {_spreads(fleet)}.\n" if fleet.replicas > 1 else ""
    return f"{note}{_yaml(service)}"


def _yaml(part: dict[str, Any]) -> str:
    text: str = yaml.dump(part, Dumper=_Plain, sort_keys=False)
    return text
