"""What the listing and calculating commands print, against the data and formulas behind them."""

import json
import re
import subprocess
import sys

import jsonschema
import pytest

from simulator import __version__
from simulator.cli.main import COMMANDS
from simulator.report.schemas import schema_for


def test_version(servecast):
    assert servecast("--version") == (0, f"servecast {__version__}\n", "")


def test_help_names_every_command(servecast):
    outcome = servecast("--help")
    assert outcome.code == 0
    for command in COMMANDS:
        assert command in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, servecast):
    outcome = servecast(command, "--help")
    assert outcome.code == 0 and "Usage: servecast" in outcome.out


@pytest.mark.parametrize("command, names", [
    ("policies", ["static", "orca", "vllm_v0", "chunked"]),
    ("hardware", ["h100-sxm", "a100-sxm-40gb", "unit"]),
    ("models", ["llama-3.1-8b", "opt-13b"]),
    ("engines", ["vllm-0.24", "orca"]),
    ("scenarios", ["chat", "wx_four_slots"]),
])
def test_lists_as_table_and_json(command, names, servecast):
    rows = json.loads(servecast(command, "--json").out)
    assert set(names) <= {row["name"] for row in rows}
    table = servecast(command).out.splitlines()
    begun = [line.split(" ")[0] for line in table[1:] if not line.startswith(" ")]
    assert begun == ["name", *(row["name"] for row in rows)], "a row begins with its name"
    assert max(map(len, table)) <= 100


@pytest.mark.parametrize("command", ["policies", "hardware", "models", "engines", "scenarios"])
def test_lists_fit_a_terminal_of_100_columns_whole(command, servecast, monkeypatch):
    names = [row["name"] for row in json.loads(servecast(command, "--json").out)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in servecast(command).out.splitlines()]
    assert max(map(len, lines)) <= 100 and not any("…" in line for line in lines)
    assert set(names) <= {line.split(" ")[0] for line in lines}


def test_policies_say_where_their_rule_comes_from(servecast):
    for row in json.loads(servecast("policies", "--json").out):
        assert any(char.isdigit() for char in row["reference"]), "a reference has a year or a version"
        assert row["reference"] in " ".join(servecast("policies", row["name"]).out.split())
    assert "known: chunked" in servecast("policies", "chunkd").err


def test_kv_arithmetic(servecast):
    """Parts add up to what is left; blocks and tokens follow from it."""
    printed = json.loads(servecast("kv", "llama-3.1-8b", "h100-sxm", "--request-tokens", 2050, "--json").out)
    jsonschema.validate(printed, schema_for("kv"))
    (facts,) = printed["gpus"]
    kept = ("weight_bytes", "activation_bytes", "graph_bytes", "workspace_bytes")
    assert facts["kv_bytes"] == facts["usable_bytes"] - sum(facts[name] for name in kept)
    # Llama 3.1 8B: keys and values x 32 layers x 8 KV heads x 128 x 2 bytes
    assert facts["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert facts["num_gpu_blocks"] == facts["kv_bytes"] // (16 * facts["kv_bytes_per_token"])
    assert facts["tokens"] == 16 * (facts["num_gpu_blocks"] - 1)
    assert facts["requests_at_once"] == (facts["num_gpu_blocks"] - 1) // 129, "2,050 tokens hold 129 blocks of 16"


def test_kv_names_the_blocks_of_a_later_start(servecast):
    """Llama-3.3-70B in fp8 on an H200: vLLM 0.24 had 11,440 blocks on a first start and 11,770 on a later one, 2.9 %
    more."""
    options = ("kv", "llama-3.3-70b-fp8", "h200", "--max-num-seqs", 128, "--max-num-batched-tokens", 2048,
               "--gpu-memory-utilization", 0.9)
    first, later = (json.loads(servecast(*options, "--json", *more).out)["gpus"][0]
                    for more in ((), ("--compile-cache",)))
    assert first["num_gpu_blocks"] == pytest.approx(11_440, rel=0.001)
    assert first["later_start_blocks"] == later["num_gpu_blocks"] == pytest.approx(11_770, rel=0.001)
    line = f"A later start, with torch.compile's cache, has {later['num_gpu_blocks']:,} blocks (+2.9 %)."
    assert line in servecast(*options).out
    for other in (("--compile-cache",), ("--engine", "vllm-0.19")):
        assert "later start" not in servecast(*options, *other).out
    refused = servecast(*options, "--engine", "sglang", "--compile-cache")
    assert refused.code == 2 and "--compile-cache means nothing for sglang" in refused.err


def test_kv_table_shows_the_formula_and_what_does_not_fit(servecast):
    outcome = servecast("kv", "llama-3.1-70b", "h100-sxm", "b200")
    assert outcome.code == 0
    assert "left for KV    = CUDA's memory x utilisation - weights" in outcome.out and "B200" in outcome.out
    assert "H100" in outcome.err and "needs at least 2 GPUs" in outcome.err


def test_trace_inspect_counts_by_hand(servecast, tmp_path):
    """Three arrivals in 4 s: two gaps, so 0.5 requests/s; mean prompt 20."""
    (tmp_path / "t.csv").write_text("when_ms,in,out\n1000,10,1\n2000,20,2\n5000,30,3\n")
    columns = [part for pair in ("arrival=when_ms", "prompt=in", "output=out") for part in ("--column", pair)]
    facts = json.loads(servecast("trace", "inspect", tmp_path / "t.csv", *columns, "--json").out)
    assert (facts["requests"], facts["span_s"], facts["rate_per_s"]) == (3, 4.0, 0.5)
    assert facts["prompt"]["mean"] == 20 and facts["output"]["max"] == 3


def test_trace_inspect_counts_what_it_drops(servecast, tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,x,1\n2,1,1\n")
    assert servecast("trace", "inspect", tmp_path / "t.csv").code == 2
    facts = json.loads(servecast("trace", "inspect", tmp_path / "t.csv", "--drop-bad-rows", "--json").out)
    assert facts["requests"] == 2 and sum(facts["rows_dropped"].values()) == 1


def test_toy_draws_both_pictures(servecast):
    out = servecast("toy", 4, 4, 10, 10, 4, 4, "--slots", 4).out
    assert "14 steps" in out and "10 steps" in out


def test_scenario_text_can_be_saved_and_run(servecast, tmp_path):
    text = servecast("scenarios", "wx_four_slots").out
    (tmp_path / "mine.yaml").write_text(text)
    assert servecast("run", tmp_path / "mine.yaml", "-q").code == 0


def test_run_without_report_loads_no_plotting_and_no_table_library():
    """Start-up time is imports; these are needed only by reports, other commands or the other engine."""
    code = ("import sys; from simulator.cli.main import main; code = main(['run', 'wx_four_slots', '--no-report']); "
            "print(code, sorted({'matplotlib', 'pandas', 'jinja2', 'simpy', 'distributed'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_closed_pipe_ends_quietly():
    command = f"{sys.executable} -m simulator.cli.main schema | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n" and done.stderr == ""
