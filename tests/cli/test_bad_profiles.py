"""Profiles, model files and measured runs that are not accepted: one line with file, key and what is."""

import json
import re
from pathlib import Path

import pytest

from hwprofiles import ENGINE_DIR, GPU_DIR

MODEL = json.loads((GPU_DIR.parent / "models" / "llama-3.1-8b.json").read_text())
RUN = """\
engine: {name: vllm, version: 0.24.0, max_num_seqs: 8, max_num_batched_tokens: 2048}
hardware: {gpu: h100-sxm}
model: model.json
arrivals: {kind: open}
"""
REQUESTS = "id,arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s,e2e_s\n"


def refused(outcome, *fragments: str) -> None:
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in outcome.err


def with_number(text: str, key: str, value: str) -> str:
    """A profile's text with the value of `key` replaced."""
    changed, count = re.subn(rf"(?m)^({key}:\s*\{{?\s*value: )[-\d.]+", rf"\g<1>{value}", text)
    assert count == 1
    return changed


@pytest.mark.parametrize("content", [b"\xff\xfe\xfa", b"? [1]\n: 2\n", b"[" * 3000, b"", b"[1]", b"a: {b: 2020-99-99}"])
@pytest.mark.parametrize("kind", ["gpu", "engine"])
def test_profile_that_cannot_be_read(kind, content, servecast, tmp_path):
    (tmp_path / "p.yaml").write_bytes(content)
    given = ["p.yaml"] if kind == "gpu" else ["h100-sxm", "--engine", "p.yaml"]
    given = [str(tmp_path / each) if each == "p.yaml" else each for each in given]
    refused(servecast("kv", "llama-3.1-8b", *given), "p.yaml")


@pytest.mark.parametrize("value", ["9" * 400, "1.0e+30", "-1"])
@pytest.mark.parametrize("key", ["schedule_ahead", "block_size", "max_num_seqs", "max_num_batched_tokens",
                                 "graph_tokens_max", "cpu_work", "frontend_work", "workspace"])
def test_number_of_an_engine_profile_out_of_range(key, value, servecast, tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(with_number((ENGINE_DIR / "vllm-0.24.yaml").read_text(), key, value))
    refused(servecast("kv", "llama-3.1-8b", "h100-sxm", "--engine", path), "e.yaml", f"{key}.value", ">= 0 and <=")


@pytest.mark.parametrize("value", ["9" * 400, "1.0e+30", "0", ".nan"])
@pytest.mark.parametrize("key", ["memory", "memory_bandwidth", "sm_count"])
def test_number_of_a_gpu_profile_out_of_range(key, value, servecast, tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text(with_number((GPU_DIR / "h100-sxm.yaml").read_text(), key, value))
    refused(servecast("kv", "llama-3.1-8b", path), "g.yaml", f"{key}.value", "> 0 and <=")


@pytest.mark.parametrize("option", ["--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--request-tokens"])
def test_calculator_refuses_numbers_beyond_all_machines(option, servecast):
    refused(servecast("kv", "llama-3.1-8b", "h100-sxm", option, "9" * 40), option)


@pytest.mark.parametrize("arguments", [("kv", "m" * 5000, "h100-sxm"), ("kv", "llama-3.1-8b", "g" * 5000),
                                       ("trace", "inspect", "t" * 5000 + ".csv"), ("run", "s" * 5000)])
def test_name_that_no_file_can_have(arguments, servecast):
    refused(servecast(*arguments), "too long")


def measured(folder: Path, run: str = RUN, requests: str = REQUESTS + "0,0,512,8,0.1,0.01,0.2\n") -> Path:
    (folder / "model.json").write_text(json.dumps(MODEL))
    (folder / "run.yaml").write_bytes(run.encode("latin-1"))
    (folder / "requests.csv").write_text(requests)
    return folder


def test_measured_run_of_these_tests_is_accepted(servecast, tmp_path):
    outcome = servecast("validate", measured(tmp_path))
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("old, new, key", [
    ("max_num_seqs: 8", "max_num_seqs: x", "engine.max_num_seqs"),
    ("max_num_seqs: 8", "max_num_seqs: .nan", "engine.max_num_seqs"),
    ("max_num_seqs: 8", "max_num_seqs: 0", "engine.max_num_seqs"),
    ("2048", "[1]", "engine.max_num_batched_tokens"),
    ("2048", "2048, block_size: null", "engine.block_size"),
    ("2048", "2048, num_gpu_blocks: -1", "engine.num_gpu_blocks"),
    ("2048", "2048, gpu_memory_utilization: 2", "engine.gpu_memory_utilization"),
    ("0.24.0", "0.24", "engine.version"),
    ("vllm", "\xff", ""),
    ("arrivals", "? [1]\n: 2\narrivals", ""),
])
def test_settings_of_a_measured_run(old, new, key, servecast, tmp_path):
    refused(servecast("validate", measured(tmp_path, RUN.replace(old, new, 1))), "run.yaml", key)


@pytest.mark.parametrize("row", ["0,inf,5,5,1,1,1", "0,0,5,5,nan,1,1", "0,0,5,x,1,1,1", "0,0,5,5,1,1,1,1,1", "0,0"])
def test_row_of_a_measured_run(row, servecast, tmp_path):
    refused(servecast("validate", measured(tmp_path, requests=f"{REQUESTS}{row}\n")), "requests.csv")


@pytest.mark.parametrize("content, fragments", [
    ("", ["not a readable JSON"]), ("[1]", ["needs gemm"]), ("[" * 100_000, ["not a readable JSON"]),
    ('{"gemm": null, "paged_decode_fa3": [], "paged_prefill_fa3": []}', ["table gemm", "list of rows", "None"]),
    ('{"gemm": [1], "paged_decode_fa3": [], "paged_prefill_fa3": []}', ["table gemm", "list of rows", "[1]"]),
    ('{"gemm": [], "paged_decode_fa3": [], "paged_prefill_fa3": []}', ["5 points or more"]),
    ('{"schema": "servecast-ops/1", "gemm": [{"m": 1}], "paged_decode": [{}], "paged_prefill": [{}]}', ["dtype"]),
])
def test_operator_measurements(content, fragments, servecast, tmp_path):
    (tmp_path / "ops.json").write_text(content)
    refused(servecast("calibrate", "fit", tmp_path / "ops.json"), *fragments)


def test_model_whose_step_times_are_not_modelled(servecast, tmp_path):
    """Its memory is counted; a run refuses it by the name of what is missing, at the line that names it."""
    experts = {**MODEL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "moe.json").write_text(json.dumps(experts))
    (tmp_path / "s.yaml").write_text("name: test\nmodel: moe.json\nhardware: {gpu: h200-sxm}\n"
                                     "workload: {requests: {prompt: [5], output: [2]}}\n")
    assert servecast("run", tmp_path / "s.yaml").code == 0
    refused(servecast("run", tmp_path / "s.yaml", "--set", "cost_model=roofline"), "s.yaml:2",
            "moe has a mixture of 8 experts (cost_model: roofline)")
    windows = {**MODEL, "model_type": "mistral", "sliding_window": 4096}
    (tmp_path / "moe.json").write_text(json.dumps(windows))
    assert servecast("run", tmp_path / "s.yaml").code == 0
    refused(servecast("run", tmp_path / "s.yaml", "--set", "policy=orca"), "s.yaml:2",
            "4096 tokens, modelled with layout: paged and policy chunked, got paged and orca")
    assert servecast("kv", tmp_path / "moe.json", "h200-sxm").code == 0


def test_slow_gpu_is_refused_in_the_users_words(servecast, tmp_path):
    """Not by a number of the cost model that nobody set."""
    path = tmp_path / "g.yaml"
    text = re.sub(r"(?m)^measured:(.|\n)*", "", (GPU_DIR / "h100-sxm.yaml").read_text())
    path.write_text(with_number(text, "memory_bandwidth", "1.0e-6"))
    (tmp_path / "s.yaml").write_text(f"name: test\nhardware: {{gpu: {path}}}\n"
                                     "workload: {requests: {prompt: [5], output: [2]}}\n")
    refused(servecast("run", tmp_path / "s.yaml"), "s.yaml:2: hardware.gpu", "g.yaml", "too slow",
            "memory_bandwidth", "peak_dense")


def test_profile_to_start_from(servecast, tmp_path):
    """What `hardware NAME` prints is a profile; under another name and without measurements it is still one."""
    for command, name in (("hardware", "h100"), ("hardware", "RTX-3090"), ("engines", "vllm-0.11")):
        outcome = servecast(command, name)
        assert outcome.code == 0 and outcome.out.startswith("#")
    (tmp_path / "g.yaml").write_text(re.sub(r"(?m)^measured:(.|\n)*", "", servecast("hardware", "h100").out))
    assert servecast("kv", "llama-3.1-8b", tmp_path / "g.yaml").code == 0
    (tmp_path / "s.yaml").write_text(f"name: test\nhardware: {{gpu: {tmp_path / 'g.yaml'}}}\n"
                                     "workload: {requests: {prompt: [5], output: [2]}}\n")
    assert servecast("run", tmp_path / "s.yaml").code == 0
    refused(servecast("hardware", "h1000"), "unknown GPU 'h1000'", "h100-sxm")
