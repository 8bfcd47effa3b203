"""Input that is not accepted: exit code 2, one line with place, key, value and what is accepted, no output."""

import errno
import json
from pathlib import Path

import pytest

from simulator import load_scenario, scenario_from
from simulator.errors import ConfigError

GOOD = """\
name: test
workload:
  arrivals: {kind: poisson, rate: 5, requests: 20}
  prompt: 100
  output: 10
"""

SCENARIOS = {
    "unknown key": (GOOD + "polcy: chunked\n",
                    ["in.yaml:6", "polcy", "did you mean policy?", "known here", "model"]),
    "mistyped key below": (GOOD + "policy: {name: chunked, max_num_seq: 4}\n",
                           ["in.yaml:6", "policy.max_num_seq ", "did you mean max_num_seqs?", "known here"]),
    "mistyped workload key": (GOOD.replace("rate:", "rat:"),
                              ["in.yaml:3", "workload.arrivals.rat", "accepted", "rate"]),
    "wrong type": (GOOD + "cluster:\n  replicas: two\n",
                   ["in.yaml:7", "cluster.replicas", "integer", "'two'"]),
    "out of range": (GOOD + "cluster:\n  replicas: 0\n", ["in.yaml:7", "cluster.replicas", ">= 1", "0"]),
    "rate 0": (GOOD.replace("rate: 5", "rate: 0"), ["in.yaml:3", "workload.arrivals.rate", "> 0", "0"]),
    "rate below 0": (GOOD.replace("rate: 5", "rate: -2"),
                     ["in.yaml:3", "workload.arrivals.rate", "> 0", "-2"]),
    "unknown policy": (GOOD + "policy: chunk\n", ["in.yaml:6", "policy", "'chunk'", "chunked", "static"]),
    "unknown GPU": (GOOD + "hardware:\n  gpu: h1000\n", ["in.yaml:7", "hardware.gpu", "'h1000'", "h100-sxm"]),
    "unknown model": (GOOD + "model: llama-9\n", ["in.yaml:6", "model", "'llama-9'", "servecast models"]),
    "unknown engine": (GOOD + "engine: vllm-9\n", ["in.yaml:6", "engine", "'vllm-9'", "vllm-0.24"]),
    "shedding without priorities": (GOOD + "admission:\n  shed: {waiting: 5}\n",
                                    ["in.yaml:7", "admission.shed", "priority of every request", "workload.classes"]),
    "shedding behind a full queue": (GOOD + "admission:\n  max_waiting: 5\n  shed: {waiting: 5}\n",
                                     ["in.yaml:6", "admission", "shed.waiting must be < max_waiting (5)"]),
    "unknown overlap": (GOOD + "cluster:\n  link: {gb_per_s: 25, overlap: chunks}\n",
                        ["in.yaml:7", "cluster.link.overlap", "'layerwise'", "'chunks'"]),
    "unknown router": (GOOD + "cluster: {router: best}\n",
                       ["in.yaml:6", "cluster.router", "'best'", "round_robin"]),
    "unknown weight format": (GOOD + "hardware: {weight_dtype: bf17}\n",
                              ["in.yaml:6", "hardware.weight_dtype", "'bf17'", "bf16"]),
    "GPUs that do not divide": (GOOD + "hardware: {tensor_parallel: 3}\n",
                                ["in.yaml:6", "hardware.tensor_parallel", "3", "32 heads"]),
    "model larger than the GPU": (GOOD + "model: llama-3.1-70b\n",
                                  ["in.yaml:6", "llama-3.1-70b", "needs at least 2 GPUs"]),
    "knob without effect": (GOOD + "policy: {name: orca, stream: true}\n",
                            ["in.yaml:6", "policy.stream", "orca", "max_num_seqs"]),
    "key twice": (GOOD + "name: again\n", ["in.yaml:6", "'name'", "twice"]),
    "not YAML": (GOOD + "model: [1\n", ["in.yaml:7", "not readable YAML"]),
    "not a mapping": ("- 1\n", ["in.yaml", "mapping", "list"]),
    "no system prompt": (GOOD.replace("  arrivals", "  prefix: {groups: 0, length: 5}\n  arrivals"),
                         ["in.yaml:3", "workload.prefix.groups", "1..1000000", "0"]),
    "system prompts without length": (GOOD.replace("  arrivals", "  prefix: {groups: 2}\n  arrivals"),
                                      ["in.yaml:3", "workload.prefix.length", "needed"]),
    "system prompts of a fraction": (GOOD.replace("  arrivals", "  prefix: {groups: 2, length: 4.5}\n  arrivals"),
                                     ["workload.prefix.length must be a whole number or a mapping", "4.5"]),
    "knob without effect under the engine's policy": (GOOD + "policy: {preferred_batch_sizes: [2]}\n",
                                                      ["in.yaml:6", "policy.preferred_batch_sizes", "chunked"]),
    "no sizes": (GOOD + "policy: {name: static, preferred_batch_sizes: []}\n",
                 ["in.yaml:6", "policy.preferred_batch_sizes must have at least 1 item, got []"]),
    "time between tokens missing": (GOOD + "policy: sarathi\n", ["in.yaml:6: policy.tbt_s is needed"]),
    "link to host memory too slow": (GOOD + "policy: vllm_v0\nkv: {swap: {gib: 1, gb_per_s: 1.0e-300}}\n",
                                     ["in.yaml:7", "kv.swap.gb_per_s must be >= 0.001", "1e-300"]),
    "prefix cache of who has none": (GOOD + "kv: {prefix_caching: true}\npolicy: tgi\n",
                                     ["in.yaml:6: kv.prefix_caching needs", "got paged and tgi"]),
    "link of one GPU": (GOOD + "hardware: {interconnect: pcie}\n", ["in.yaml:6: hardware.interconnect has no effect"]),
    "pipeline": (GOOD + "hardware: {pipeline_parallel: 64}\n",
                 ["in.yaml:6: hardware.pipeline_parallel: pipeline stages must be 1 to 32", "got 64"]),
    "adapters on two GPUs": (GOOD + "hardware: {tensor_parallel: 2}\nengine: {lora: {rank: 8}}\n",
                             ["in.yaml:7: engine.lora: adapters are modelled on one GPU"]),
    "adapters on the textbook GPU": (GOOD + "hardware: unit\nengine: {lora: {rank: 8}}\n",
                                     ["in.yaml:7: engine.lora has no effect on gpu: unit, got {'max_loras': 1"]),
    "autoscaled fleet that swaps": (
        GOOD + "policy: vllm_v0\nkv: {swap: {gib: 1, gb_per_s: 25}}\n"
        "cluster: {autoscale: {metric: requests, target: 1, start: {}}}\n",
        ["in.yaml:8: cluster.autoscale with preemption by swap"]),
    "spot capacity that swaps": (
        GOOD + "policy: vllm_v0\nkv: {swap: {gib: 1, gb_per_s: 25}}\n"
        "cluster: {spot: {reclaims_per_hour: 1, replace_s: 60}}\n",
        ["in.yaml:8: cluster.spot with preemption by swap"]),
    "found twice": (GOOD.replace("  arrivals", "  prefix: {groups: 2, length: 5}\n  cached: 3\n  arrivals"),
                    ["workload", "cached has no effect beside prefix"]),
    "nothing in it": ("", ["in.yaml:1", "workload is missing"]),
    "negative time": ("workload:\n  requests:\n    output: [3, 4]\n    arrival_s: [-1.0, 0.0]\n",
                      ["in.yaml:4", "workload.requests.arrival_s", "row 1", ">= 0", "-1.0"]),
    "times out of order": ("workload:\n  requests:\n    output: [3, 4]\n    arrival_s: [2.0, 1.0]\n",
                           ["in.yaml:4", "workload.requests.arrival_s", "row 2", "1.0 after 2.0"]),
    "key that is a list": (GOOD + "? [1, 2]\n: 3\n", ["in.yaml:6", "key", "text or number", "sequence"]),
    "key that is a mapping": (GOOD + "slo:\n  ? {a: 1}\n  : 3\n", ["in.yaml:7", "key", "mapping"]),
    "lone surrogate": (GOOD.replace("test", '"\\ud800"'), ["in.yaml:1", "Unicode", "ud800"]),
    "NUL in a name": (GOOD + 'hardware: {gpu: "a\\0.yaml"}\n', ["in.yaml:6", "NUL", "a\\x00.yaml"]),
    "section that is a list": (GOOD + "load: [open]\n", ["in.yaml:6", "load", "mapping of keys", "['open']"]),
    "GPU name no file can have": (GOOD + f"hardware: {{gpu: {'g' * 5000}}}\n",
                                  ["in.yaml:6", "hardware.gpu", "too long"]),
    "model name no file can have": (GOOD + f"model: {'m' * 5000}.json\n", ["in.yaml:6", "model", "too long"]),
    "trace name no file can have": (f"workload: {{trace: {'t' * 5000}.csv}}\n", ["in.yaml:1", "too long"]),
    "no such trace": ("name: x\nworkload: {trace: no.csv}\n",
                      ["in.yaml:2", "workload.trace.path", "no.csv", "accepted"]),
    "no such sample": (GOOD.replace("output: 10", "output: {kind: empirical, path: no.csv}"),
                       ["in.yaml:5", "workload.output", "no.csv"]),
    "sample of unequal lists": (GOOD.replace("output: 10", "output: {kind: empirical, values: [[1], [2, 3]]}"),
                                ["in.yaml:5", "workload.output.values", "whole numbers"]),
    "arrivals beyond 36 years": (GOOD.replace("rate: 5", "rate: 1e-300"),
                                 ["in.yaml:2", "arrivals", "beyond 1.15e+09 s"]),
    "arrivals at infinity": (GOOD.replace("rate: 5", "rate: 1e-320"), ["in.yaml:2", "arrivals", "beyond"]),
    "more arrivals than fit": (GOOD.replace("rate: 5, requests: 20", "rate: 1e300, duration_s: 10"),
                               ["in.yaml:2", "arrivals", "more than 1000000000"]),
    "no spread to draw": (GOOD.replace("poisson, rate: 5", "gamma, rate: 5, cv: 1e-200"),
                          ["in.yaml:3", "workload.arrivals.cv", "0.001..1000", "1e-200"]),
    "spread beyond floats": (GOOD.replace("poisson, rate: 5", "gamma, rate: 5, cv: 1e9"),
                             ["in.yaml:3", "workload.arrivals.cv", "0.001..1000"]),
    "lengths of endless spread": (GOOD.replace("output: 10", "output: {kind: lognormal, mean: 9, cv: 1e300}"),
                                  ["in.yaml:5", "workload.output.cv", "<= 1000000", "1e+300"]),
    "peak hour infinite": (GOOD.replace("poisson, rate: 5", "diurnal, rate: 5, peak_hour: .inf"),
                           ["in.yaml:3", "workload.arrivals.peak_hour", "finite", "inf"]),
    "zero tokens": ("workload:\n  requests: {output: [3, 0]}\n",
                    ["in.yaml:2", "workload.requests", "row 2", "output", "1..", "got 0"]),
    "no requests": (
        "workload:\n  requests: {output: []}\n", ["in.yaml:2", "workload.requests", "empty", "at least 1"]),
}

TOO_LARGE = ("seed", "load.width", "max_model_len", "horizon_s", "slo.ttft_s", "slo.tpot_s", "slo.e2e_s",
             "slo.queue_s", "hardware.step_s", "policy.max_num_seqs", "policy.max_num_batched_tokens",
             "policy.long_prefill_token_threshold", "policy.batch_window_s", "policy.length_bucket",
             "kv.block_size", "kv.num_gpu_blocks", "kv.reserve_tokens", "cluster.replicas")
"""Every number of a scenario that has no upper end of its own."""

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
TRACES = {
    "negative time": (HEADER + "0,5,5\n-1,5,5\n", ["row 2 (line 3)", "arrival", ">= 0", "'-1'"]),
    "times out of order": (HEADER + "3,5,5\n1,5,5\n", ["row 2 (line 3)", "arrival", "1.0", "3.0", "sort: true"]),
    "zero tokens": (HEADER + "3,5,0\n", ["row 1 (line 2)", "output", ">= 1", "'0'"]),
    "not a number": (HEADER + "1,5,5\n2,five,5\n", ["row 2 (line 3)", "prompt", "whole number", "'five'"]),
    "missing arrival": (HEADER + "1,5,5\n,5,5\n", ["row 2 (line 3)", "arrival", "missing"]),
    "field of 200,000 digits": (HEADER + "0,5," + "5" * 200_000 + "\n",
                                ["data row 1", "output", "whole number", "..."]),
    "no rows": (HEADER, ["empty trace"]),
    "empty file": ("", ["empty trace"]),
    "no such columns": ("a,b\n1,5\n", ["arrival, prompt, output", "the file has: a, b", "columns"]),
}


def refused(outcome, folder: Path, before: list[Path], fragments: list[str]) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.endswith("\n") and outcome.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in outcome.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_is_refused_in_one_line_and_nothing_is_written(name, servecast, tmp_path):
    text, fragments = SCENARIOS[name]
    (tmp_path / "in.yaml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    refused(servecast("run", tmp_path / "in.yaml", "--out", tmp_path / "out"), tmp_path, before, fragments)


@pytest.mark.parametrize("key", TOO_LARGE)
def test_number_that_int64_or_the_clock_cannot_hold_is_refused(key, servecast, tmp_path):
    (tmp_path / "in.yaml").write_text(GOOD)
    before = sorted(tmp_path.rglob("*"))
    number = 1e40 if key.endswith("_s") else 10**40
    outcome = servecast("run", tmp_path / "in.yaml", "--set", f"{key}={number}")
    refused(outcome, tmp_path, before, ["--set", key, "<"])


@pytest.mark.parametrize("name", TRACES)
def test_trace_is_refused_in_one_line_with_row_and_nothing_is_written(name, servecast, tmp_path):
    text, fragments = TRACES[name]
    (tmp_path / "in.csv").write_text(text)
    (tmp_path / "in.yaml").write_text("workload: {trace: in.csv}\nhardware: unit\n")
    before = sorted(tmp_path.rglob("*"))
    refused(servecast("run", tmp_path / "in.yaml", "--out", tmp_path / "out"), tmp_path, before,
            ["in.csv", *fragments])


@pytest.mark.parametrize("option, fragments", [
    ("copies: 1000000000000", ["copies", "500000000", "1000000000000"]),
    ("copies: 2, copy_shift_s: 1e300", ["copy_shift_s", ">= 0", "1e+300"]),
    ("start_s: 1e300", ["start_s", "no arrival"]),
    ("rate_scale: 1e-320", ["rate_scale", "beyond"]),
    ("limit: 0", ["limit", ">= 1", "0"]),
])
def test_trace_option_out_of_range_is_refused(option, fragments, servecast, tmp_path):
    (tmp_path / "in.csv").write_text(HEADER + "1,5,5\n2,5,5\n")
    (tmp_path / "in.yaml").write_text(f"workload: {{trace: {{path: in.csv, {option}}}}}\nhardware: unit\n")
    before = sorted(tmp_path.rglob("*"))
    refused(servecast("run", tmp_path / "in.yaml"), tmp_path, before, ["in.yaml:1", "in.csv", *fragments])


@pytest.mark.parametrize("option", ["end_s: .inf", "end_s: 1e300", f"limit: {10**30}"])
def test_trace_window_wider_than_the_trace_keeps_all_of_it(option, servecast, tmp_path):
    (tmp_path / "in.csv").write_text(HEADER + "1,5,5\n2,5,5\n")
    (tmp_path / "in.yaml").write_text(f"workload: {{trace: {{path: in.csv, {option}}}}}\nhardware: unit\n")
    outcome = servecast("run", tmp_path / "in.yaml", "--json")
    assert outcome.code == 0 and json.loads(outcome.out)["requests"]["completed"] == 2


def test_good_twin_of_the_refused_scenarios_runs(servecast, tmp_path):
    (tmp_path / "in.yaml").write_text(GOOD)
    assert servecast("run", tmp_path / "in.yaml", "--quiet") == (0, "", "")


def test_sort_true_takes_times_out_of_order_and_keeps_ties_in_file_order(servecast, tmp_path):
    (tmp_path / "in.csv").write_text(HEADER + "3,5,1\n1,6,2\n1,7,3\n")
    (tmp_path / "in.yaml").write_text("workload: {trace: {path: in.csv, sort: true}}\nhardware: unit\n")
    assert servecast("run", tmp_path / "in.yaml", "--out", tmp_path / "out", "--no-report", "-q").code == 0
    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "out" / "requests.parquet").to_pydict()
    assert rows["prompt_tokens"] == [6, 7, 5]


@pytest.mark.parametrize("assignment, fragments", [
    ("polcy=static", ["--set", "polcy", "policy"]),
    ("policy.max_num_seqs=x", ["--set", "policy.max_num_seqs", "integer", "'x'"]),
    ("workload.arrivals.rate=0", ["--set", "workload.arrivals.rate", "> 0"]),
    ("hardware.gpu=zz", ["--set", "hardware.gpu", "'zz'", "h100-sxm"]),
    ("policy", ["--set policy", "key=value"]),
    ("a..b=3", ["--set a..b=3", "key=value"]),
    ("cluster.replicas=[", ["--set cluster.replicas=[", "YAML"]),
    ("slo={ttft_s: 1, ttft_s: 2}", ["--set slo=", "'ttft_s'", "twice"]),
    ("slo={[1]: 2}", ["--set slo=", "key", "sequence"]),
    ("name=2020-99-99", ["--set name=2020-99-99", "YAML"]),
    ("name=" + "[" * 3000, ["--set name=", "YAML"]),
    ("name=\udcff", ["--set name=", "udcff"]),
])
def test_bad_override_is_refused(assignment, fragments, servecast, tmp_path):
    (tmp_path / "in.yaml").write_text(GOOD)
    before = sorted(tmp_path.rglob("*"))
    outcome = servecast("run", tmp_path / "in.yaml", "--set", assignment, "--out", tmp_path / "out")
    refused(outcome, tmp_path, before, fragments)


@pytest.mark.parametrize("arguments, fragments", [
    (["run"], ["SCENARIO"]),
    (["run", "nowhere.yaml"], ["nowhere.yaml", "No such file"]),
    (["run", "plan_chat"], ["plan_chat", "not a scenario", "servecast plan plan_chat"]),
    (["run", "sweep_batch"], ["sweep_batch", "servecast sweep sweep_batch"]),
    (["compare", "chat", "whatif_chat"], ["whatif_chat", "servecast whatif SCENARIO whatif_chat"]),
    (["run", "chat", "--column", "arrival=ts"], ["--column", "--trace FILE"]),
    (["run", "chat", "--column", "arrival"], ["--column arrival", "PART=NAME"]),
    (["frobnicate"], ["frobnicate"]),
    (["run", "chat", "--seed", "-1"], ["--seed", "0"]),
    (["run", "chat", "--engine", "slow"], ["--engine", "slow", "fast", "reference"]),
    (["run", "chat", "--frob"], ["--frob"]),
    (["run", "chat", "--trace", "nowhere.csv"], ["nowhere.csv", "workload.trace.path"]),
    (["compare", "chat", "chat"], ["chat", "2 times"]),
    (["compare", "chat", "--policies", "static,chunky"], ["--policies", "'chunky'", "chunked"]),
    (["compare", "chat", "--policies", "orca,orca"], ["--policies", "orca", "twice"]),
    (["kv", "llama-3.1-8b", "h1000"], ["'h1000'", "h100-sxm"]),
    (["kv", "llama-3.1-70b", "rtx-4090"], ["llama-3.1-70b", "GPUs"]),
    (["toy", "0"], ["LENGTHS", "1"]),
    (["scenarios", "chatt"], ["'chatt'", "did you mean chat ", "servecast scenarios"]),
    (["capacity", "chat", "--slo", "p95 ttft < 500"], ["needs a unit"]),
    (["capacity", "chat", "--slo", "p95 ttft < -500 ms"], ["more than 0"]),
    (["run", "chat", "--set", "workload={trace: {path: a.csv, prompt_scale: 2}}"], ["prompt_scale", "whatif"]),
    (["trace", "inspect", "nowhere.csv"], ["nowhere.csv"]),
    (["trace", "inspect", "nowhere.csv", "--column", "arrival"], ["--column arrival", "PART=NAME"]),
])
def test_command_line_is_refused_in_one_line(arguments, fragments, servecast):
    outcome = servecast(*arguments)
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in outcome.err


def test_number_with_an_exponent_needs_neither_point_nor_sign(servecast, tmp_path):
    (tmp_path / "in.yaml").write_text(GOOD.replace("rate: 5", "rate: 5e0"))
    plain = GOOD
    (tmp_path / "plain.yaml").write_text(plain)
    outputs = [servecast("run", tmp_path / name, "--json").out for name in ("in.yaml", "plain.yaml")]
    assert outputs[0].replace("5.0", "5") == outputs[1].replace("5.0", "5")


def test_message_stays_one_uncoloured_line_whatever_is_in_a_name(servecast, tmp_path):
    outcome = servecast("run", f"{tmp_path}/\x1b[31mred\r\u2028.yaml")
    assert outcome.code == 2
    assert outcome.err.rstrip("\n").isprintable()


def test_yaml_is_data_nothing_in_it_executes(servecast, tmp_path):
    mark = tmp_path / "executed"
    (tmp_path / "in.yaml").write_text(GOOD + f"model: !!python/object/apply:os.mkdir ['{mark}']\n")
    outcome = servecast("run", tmp_path / "in.yaml")
    assert outcome.code == 2 and "in.yaml:6" in outcome.err
    assert not mark.exists()


def test_prompt_that_can_never_fit_is_rejected_and_counted_and_the_run_goes_on(servecast, tmp_path):
    (tmp_path / "in.yaml").write_text(
        "workload: {requests: {prompt: [10, 500, 10], output: [5, 5, 5]}}\nhardware: unit\n"
        "kv: {block_size: 10, num_gpu_blocks: 11}\n")
    outcome = servecast("run", tmp_path / "in.yaml", "--json")
    counted = json.loads(outcome.out)["requests"]
    assert outcome.code == 0
    assert (counted["arrived"], counted["completed"], counted["rejected"]) == (3, 2, 1)


@pytest.mark.parametrize("assignment", ["model: opt-13b", "cost_model: roofline", "engine: vllm-0.19",
                                        "hardware: {gpu: unit, tensor_parallel: 2}",
                                        "hardware: {gpu: unit, kv_dtype: fp8}"])
def test_a_key_that_changes_nothing_on_the_textbook_gpu_is_refused(tmp_path: Path, assignment: str) -> None:
    base = "workload: {requests: {output: [2]}}\n" + ("" if "hardware" in assignment else "hardware: unit\n")
    file = tmp_path / "toy.yaml"
    file.write_text(base + assignment + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"toy.yaml:{base.count(chr(10)) + 1}: .* has no effect on gpu: unit"):
        load_scenario(file)


def test_full_disk_names_the_folder_and_leaves_nothing(servecast, tmp_path, monkeypatch):
    def full(path: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "in.yaml").write_text(GOOD)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("simulator.report.write.Path.write_text", full)
    outcome = servecast("run", tmp_path / "in.yaml", "--out", tmp_path / "out", "--no-report")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"{tmp_path / 'out'}: No space left on device\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_plain_data_has_a_name_in_messages_and_no_line() -> None:
    data = {"name": "mine", "workload": {"requests": {"output": [2]}}, "policy": {"name": "chunked", "tbt_s": 1.0}}
    with pytest.raises(ConfigError, match=r"^scenario: policy\.tbt_s has no effect under chunked"):
        scenario_from(data)
