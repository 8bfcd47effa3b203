"""Command and manifests of a plan start the engine that was simulated, or there is a reason why there are none."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from hwprofiles import MODEL_DIR
from simulator.planning.candidate import candidates_of, scenario_of
from simulator.planning.plan import plan
from simulator.planning.price import Fleet
from simulator.planning.spec import PlanSpec, plan_from
from simulator.profiles.model import list_models
from simulator.report.plan.data import plain
from simulator.report.plan.deploy import (
    _checkpoint,
    command,
    command_notes,
    kubernetes,
    no_command,
    vllm_command,
    vllm_flags,
)
from simulator.report.plan.names import service_name
from simulator.report.plan.words import answer_lines, export_lines
from simulator.scenario.setup import Setup, prepare

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035 label, what Kubernetes takes as the name of a Service."""


def case(candidates: dict[str, Any] | None = None, **changes: Any) -> tuple[PlanSpec, Setup, Fleet]:
    spec = plan_from({
        "name": "Chat <8B>", "workload": {"requests": {"output": [1]}}, "slo": {"ttft_p50_s": 1},
        "max_model_len": 16_384, "candidates": candidates or {}, **changes})  # fmt: skip
    candidate = candidates_of(spec)[0]
    fleet = Fleet(candidate, 5, 1, 10.0, (9.0, 11.0), 1.0, 0.1, 700.0, 0.1)
    return spec, prepare(scenario_of(spec, candidate)), fleet


def flags(candidates: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    spec, setup, _ = case(candidates, **changes)
    return vllm_flags(spec, setup)


def test_flags_say_what_was_simulated() -> None:
    given = flags({"weight_dtype": "fp8", "kv_dtype": "fp8", "tensor_parallel": 2, "max_num_seqs": 96,
                   "max_num_batched_tokens": 4096}, gpu_memory_utilization=0.85,
                  engine={"name": "vllm-0.24", "schedule_ahead": 0, "cuda_graphs": False},
                  kv={"block_size": 32, "num_gpu_blocks": 3000})  # fmt: skip
    assert given == [
        "meta-llama/Llama-3.1-8B-Instruct", "--tensor-parallel-size=2", "--max-model-len=16384", "--max-num-seqs=96",
        "--max-num-batched-tokens=4096", "--gpu-memory-utilization=0.85", "--block-size=32", "--dtype=bfloat16",
        "--quantization=fp8", "--kv-cache-dtype=fp8", "--num-gpu-blocks-override=3000", "--no-async-scheduling",
        "--enforce-eager"]  # fmt: skip
    assert "--dtype=float16" in flags({"weight_dtype": "fp16"})
    assert "--dtype=float16" in flags({"weight_dtype": "half"})
    assert flags(model="meta-llama/Llama-3.1-8B-Instruct")[0] == "meta-llama/Llama-3.1-8B-Instruct"


def test_flags_of_the_cache_and_of_experts_only_where_they_were_asked_for() -> None:
    """vllm/engine/arg_utils.py: --[no-]enable-prefix-caching, --enable-expert-parallel; both have defaults."""
    assert not any("prefix" in flag or "expert" in flag for flag in flags())
    assert "--enable-prefix-caching" in flags({"prefix_caching": True})
    assert "--no-enable-prefix-caching" in flags({"prefix_caching": False})
    moe = {"gpu": "h200-sxm", "tensor_parallel": 2, "model": "qwen3-30b-a3b"}
    assert "--enable-expert-parallel" in flags(moe | {"expert_parallel": True})
    assert "--enable-expert-parallel" not in flags(moe)


@pytest.mark.parametrize(("candidates", "changes", "word"), [
    ({"policy": "static"}, {}, "no policy static"),
    ({"policy": "orca"}, {}, "no policy orca"),
    ({"policy": "vllm_v0"}, {}, "no policy vllm_v0"),
    ({"weight_dtype": "int8"}, {}, "INT8"),
    ({"weight_dtype": "int4"}, {}, "AWQ or GPTQ"),
    ({"weight_dtype": "awq"}, {}, "AWQ or GPTQ"),
    ({"weight_dtype": "fp4", "gpu": "b200"}, {}, "NVFP4"),
    ({}, {"engine": "tgi"}, "not for tgi"),
    ({"policy": "orca"}, {"engine": "orca"}, "not for orca"),
    ({}, {"engine": {"name": "vllm-0.24", "schedule_ahead": 3}}, "one step ahead"),
    ({"policy": "chunked"}, {"kv": {"layout": "contiguous"}}, "not contiguous"),
    ({"gpu": "mi300x"}, {}, "NVIDIA"),
    ({"gpu": "unit", "policy": "orca"}, {}, "textbook"),
])  # fmt: skip
def test_no_command_where_it_would_start_another_engine(
    candidates: dict[str, Any], changes: dict[str, Any], word: str
) -> None:
    spec, setup, fleet = case(candidates, **changes)
    assert word in no_command(spec, setup)
    assert vllm_command(spec, setup) == kubernetes(spec, setup, fleet) == ""
    assert vllm_flags(spec, setup) == []


def test_sglang_is_started_as_it_was_simulated() -> None:
    """docs.sglang.io, Server Arguments: prefill and decode share a batch with --enable-mixed-chunk only; its radix
    cache is on by default, fp8 KV is fp8_e4m3, a pool of pages is --max-total-tokens."""
    spec, setup, fleet = case({"weight_dtype": "fp8", "kv_dtype": "fp8", "tensor_parallel": 2, "max_num_seqs": 96,
                               "max_num_batched_tokens": 4096}, engine={"name": "sglang", "schedule_ahead": 0},
                              kv={"num_gpu_blocks": 300_000}, gpu_memory_utilization=0.8)  # fmt: skip
    words = command(spec, setup).replace("\\\n", "").split()
    assert words[:3] == ["python", "-m", "sglang.launch_server"]
    assert words[3:] == [
        "--model-path=meta-llama/Llama-3.1-8B-Instruct", "--tp-size=2", "--context-length=16384",
        "--max-running-requests=96", "--chunked-prefill-size=4096", "--enable-mixed-chunk", "--mem-fraction-static=0.8",
        "--page-size=1", "--dtype=bfloat16", "--quantization=fp8", "--kv-cache-dtype=fp8_e4m3",
        "--max-total-tokens=300000", "--disable-radix-cache", "--disable-overlap-schedule"]  # fmt: skip
    assert vllm_flags(spec, setup) == [] and kubernetes(spec, setup, fleet) == ""
    assert any("no manifest is written" in note for note in command_notes(setup, fleet))


@pytest.mark.parametrize(("policy", "capacity", "chunked"), [
    ("chunked", "MAX_UTILIZATION", True), ("max_utilization", "MAX_UTILIZATION", False),
    ("guaranteed_no_evict", "GUARANTEED_NO_EVICT", False)])  # fmt: skip
def test_tensorrt_llm_is_started_as_it_was_simulated(policy: str, capacity: str, chunked: bool) -> None:
    """The YAML of its LLM API (TorchLlmArgs, KvCacheConfig, SchedulerConfig), read by --extra_llm_api_options."""
    spec, setup, _ = case({"policy": policy, "kv_dtype": "fp8", "max_num_seqs": 96}, engine="tensorrt-llm",
                          gpu_memory_utilization=0.85)  # fmt: skip
    text = command(spec, setup)
    options = yaml.safe_load(text.split("<<'END'\n")[1].split("\nEND\n")[0])
    assert options == {
        "dtype": "bfloat16",
        "kv_cache_config": {"enable_block_reuse": chunked, "free_gpu_memory_fraction": 0.85, "tokens_per_block": 32,
                            "dtype": "fp8"},
        "enable_chunked_prefill": chunked,
        "scheduler_config": {"capacity_scheduler_policy": capacity},
    }  # fmt: skip
    assert "trtllm-serve meta-llama/Llama-3.1-8B-Instruct" in text and "--max_batch_size=96" in text


@pytest.mark.parametrize(("candidates", "changes", "word"), [
    ({"policy": "static"}, {"engine": "sglang"}, "no policy static"),
    ({"weight_dtype": "fp8"}, {"engine": "tensorrt-llm"}, "checkpoint in FP8"),
])  # fmt: skip
def test_other_engines_without_a_setting_are_named(
    candidates: dict[str, Any], changes: dict[str, Any], word: str
) -> None:
    spec, setup, _ = case(candidates, **changes)
    assert word in no_command(spec, setup) and command(spec, setup) == ""


def test_a_quantised_checkpoint_is_served_as_it_is(tmp_path: Path) -> None:
    config = json.loads((MODEL_DIR / "llama-3.1-8b.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec, setup, fleet = case({"weight_dtype": "auto"}, model=str(tmp_path / "config.json"))
    assert vllm_flags(spec, setup)[0] == str(tmp_path)
    assert not any("quantization" in flag for flag in vllm_flags(spec, setup))
    assert any("awq" in note for note in command_notes(setup, fleet))


def test_shipped_models_are_served_from_their_repositories() -> None:
    """Every name of `servecast models` stands for an owner/name of Hugging Face, never for itself."""
    names = [_checkpoint(model) for model in list_models()]
    assert all(re.fullmatch(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+", name or "") for name in names)
    assert _checkpoint("qwen3-32b-awq") == "Qwen/Qwen3-32B-AWQ" == _checkpoint("Qwen/Qwen3-32B-AWQ")


def test_a_shape_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "my-shape.json"
    path.write_text((MODEL_DIR / "llama-3.1-8b.json").read_text())
    assert "not the folder of a checkpoint; set model to the folder" in no_command(*case(model=str(path))[:2])
    assert "set candidates.model to" in no_command(*case({"model": str(path)})[:2])


def test_pods_get_a_token_for_weights_that_are_not_for_everybody(tmp_path: Path) -> None:
    """The variable is optional, so that pods start without the secret too; a folder of one's own is fetched nowhere."""
    wanted = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token-secret", "key": "token",
                                                                "optional": True}}}  # fmt: skip
    for model, gated in (("llama-3.1-8b", True), ("gemma-3-27b", True), ("qwen3-32b", False)):
        spec, setup, fleet = case({"gpu": "h200-sxm"}, model=model)
        text = kubernetes(spec, setup, fleet)
        assert next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]["env"] == [wanted]
        said = [note for note in command_notes(setup, fleet) if "HF_TOKEN" in note]
        assert (len(said), "# " in text and "kubectl create secret generic hf-token-secret" in text) == (gated, gated)
    (tmp_path / "config.json").write_text((MODEL_DIR / "llama-3.1-8b.json").read_text())
    assert "HF_TOKEN" not in kubernetes(*case(model=str(tmp_path)))


def test_manifests_hold_against_the_schemas_of_kubernetes() -> None:
    """Deployment apps/v1 and Service v1, strict: no key that the API does not know."""
    for name in ("Chat <8B>", "2024 Q3: chat & code", "-", "ünïcode", "x" * 200, "ends-" * 12 + "-"):
        spec, setup, fleet = case(name=name)
        documents = list(yaml.safe_load_all(kubernetes(spec, setup, fleet)))
        assert [each["kind"] for each in documents] == ["Deployment", "Service"]
        for each in documents:
            kubernetes_validate.validate(each, "1.33", strict=True)
            assert DNS_1035.fullmatch(each["metadata"]["name"]), each["metadata"]["name"]


@pytest.mark.parametrize(("text", "name"), [("Chat <8B>", "chat-8b"), ("8B on L4", "plan-8b-on-l4"), ("", "plan")])
def test_names(text: str, name: str) -> None:
    assert service_name(text) == name


def test_deployment_has_every_replica_and_its_gpus() -> None:
    text = kubernetes(*case({"tensor_parallel": 2}))
    deployment, service = yaml.safe_load_all(text)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert deployment["spec"]["replicas"] == 6  # 5 serve, 1 is spare
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert container["image"] == "vllm/vllm-openai:v0.24.0"
    assert container["args"][0] == "--model=meta-llama/Llama-3.1-8B-Instruct"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_manifests_have_no_anchors_and_say_who_routes() -> None:
    text = kubernetes(*case({"router": "least_outstanding"}))
    assert not re.search(r"[&*]id\d", text)
    assert "\n# This Service spreads connections" in text and "not by the planned least outstanding router" in text
    spec, setup, fleet = case({"router": "least_outstanding"})
    assert "router" not in kubernetes(spec, setup, replace(fleet, serving=1, spare=0))
    assert "not by the planned least outstanding router" in " ".join(
        export_lines(data({"router": "least_outstanding", "gpu": "h100-sxm", "replicas": [2]})["export"]))  # fmt: skip


def data(candidates: dict[str, Any], requests: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    spec = plan_from({
        "workload": {"requests": requests or {"output": [20] * 12, "prompt": 100, "arrival_s": list(range(12))}},
        "slo": {"ttft_p50_s": 2}, "candidates": candidates, "search": {"replications": 2}, **changes})  # fmt: skip
    return plain(plan(spec, jobs=1, explain=False))


def test_a_plan_without_a_length_chooses_one_that_the_card_holds_and_says_so() -> None:
    """Llama-3.1-8B in 16 bits leaves an L4 less than 4 GiB for KV: 131,072 positions would need 16."""
    found = data({"gpu": "l4", "replicas": [1, 2]})
    own = found["recommended"]["replica"]
    assert own["kv_tokens"] > own["max_model_len"] > 0.9 * own["kv_tokens"]
    assert f"--max-model-len={own['max_model_len']}" in found["export"]["vllm"]
    said = next(line for line in answer_lines(found) if "max_model_len" in line)
    assert f"{own['max_model_len']:,}" in said and "131,072 positions" in said and "longest request has 120" in said
    roomy = data({"gpu": "h100-sxm", "replicas": [1]})
    assert "--max-model-len=131072" in roomy["export"]["vllm"]
    assert not any("max_model_len" in line for line in answer_lines(roomy))


def test_a_request_that_the_card_cannot_hold_is_a_reason() -> None:
    long = {"output": [20] * 6, "prompt": [100] * 5 + [60_000]}
    found = data({"gpu": ["l4"], "replicas": [1]}, long)
    assert found["candidates"][0]["status"] == "does not fit"
    assert "the longest request has 60,020 tokens" in found["candidates"][0]["reason"]
    rejecting = data({"gpu": ["l4"], "replicas": [1]}, long, max_model_len=16_384)
    assert rejecting["candidates"][0]["status"] != "does not fit"


def test_a_length_within_the_error_of_the_kv_memory_is_called_so() -> None:
    blocks = data({"gpu": "l4", "replicas": [1]}, max_model_len=4096)["recommended"]["replica"]["kv_blocks"]
    tight = data({"gpu": "l4", "replicas": [1]}, max_model_len=16 * (blocks - 2))
    assert any("may refuse to start" in line for line in answer_lines(tight))
