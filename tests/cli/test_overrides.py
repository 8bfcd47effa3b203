"""Explicit flag beats --set beats YAML beats default."""

import json

import pytest

TEXT = """\
seed: 5
workload: {arrivals: {kind: poisson, rate: 5, requests: 20}, prompt: 100, output: 10}
hardware: h100-sxm
policy: chunked
kv: {num_gpu_blocks: 500}
max_model_len: 4096
"""


@pytest.fixture
def resolved(servecast, tmp_path):
    (tmp_path / "in.yaml").write_text(TEXT)

    def run(*arguments):
        return json.loads(servecast("run", tmp_path / "in.yaml", "--json", *arguments).out)["scenario"]

    return run


def test_yaml_beats_default(resolved):
    assert resolved()["seed"] == 5


def test_set_beats_yaml(resolved):
    assert resolved("--set", "seed=6")["seed"] == 6


def test_flag_beats_set(resolved):
    scenario = resolved("--set", "seed=6", "--seed", 7, "--set", "kv.num_gpu_blocks=600", "--num-gpu-blocks", 700)
    assert scenario["seed"] == 7 and scenario["kv"]["num_gpu_blocks"] == 700


def test_later_set_beats_earlier(resolved):
    assert resolved("--set", "seed=6", "--set", "seed=8")["seed"] == 8


def test_set_reaches_into_a_section_given_as_one_word(resolved):
    scenario = resolved("--set", "policy.max_num_seqs=3", "--set", "hardware.tensor_parallel=2",
                        "--set", "load=closed", "--set", "load.width=2")
    assert (scenario["policy"]["name"], scenario["policy"]["max_num_seqs"]) == ("chunked", 3)
    assert (scenario["hardware"]["gpu"], scenario["hardware"]["tensor_parallel"]) == ("h100-sxm", 2)
    assert (scenario["load"]["kind"], scenario["load"]["width"]) == ("closed", 2)


def test_set_changes_the_run(servecast, tmp_path):
    """Four requests of 3 tokens: 3 steps in four slots, 6 in two, 12 in one."""
    (tmp_path / "in.yaml").write_text("workload: {requests: {output: [3, 3, 3, 3]}}\nhardware: unit\npolicy: orca\n")
    steps = [json.loads(servecast("run", tmp_path / "in.yaml", "--json", "--set", f"policy.max_num_seqs={n}").out)
             ["steps"] for n in (4, 2, 1)]
    assert steps == [3, 6, 12]


def test_trace_flag_replaces_the_workload_and_is_taken_from_the_working_directory(servecast, tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("ts,a,b\n0,7,1\n1,8,2\n")
    monkeypatch.chdir(tmp_path)
    outcome = servecast("run", "chat", "--trace", "mine.csv", "--json", "--set",
                        "workload.trace.columns={arrival: ts, prompt: a, output: b}", "--set",
                        "workload.trace.time_unit=s")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["requests"]["arrived"] == 2


def test_both_engines_give_the_same_summary(servecast):
    fast, reference = (json.loads(servecast("run", "wx_four_slots", "--json", "--engine", name).out)
                       for name in ("fast", "reference"))
    assert fast == reference


def test_columns_are_named_on_the_command_line(tmp_path, servecast):
    """Three requests, one output token each, under names of their own; a shipped scenario, a file elsewhere."""
    trace = tmp_path / "mine.csv"
    trace.write_text("when,tok in,tok=out\n0,10,1\n1,10,1\n2,10,1\n")
    columns = ["--column", "arrival=when", "--column", "prompt=tok in", "--column", "output=tok=out"]
    outcome = servecast("run", "chat", "--trace", trace, *columns, "--time-unit", "s", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["requests"]["completed"] == 3
    refused = servecast("run", "chat", "--trace", trace)
    assert refused.code == 2 and "--column arrival=" in refused.err and "/../" not in refused.err
