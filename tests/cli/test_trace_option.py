"""--trace, --column, --time-unit, --drop-bad-rows and --where mean the same in every command that takes a trace."""

import json
from pathlib import Path

import pytest

SCENARIO = "workload: {arrivals: {kind: poisson, rate: 1, requests: 3}, prompt: 5, output: 5}\nhardware: unit\n"
PLAN = """\
workload: {arrivals: {kind: poisson, rate: 1, requests: 30}, prompt: 5, output: 5}
slo: {e2e_mean_s: 100}
step_s: 0.01
candidates: {gpu: unit, policy: orca, max_num_seqs: 4, replicas: {max: 2}}
"""
OVERLAYS = "replications: 1\noverlays: [{name: more, set: {policy.max_num_seqs: 2}}]\n"
TRACE = "ts,a,b,kind\n0,7,1,x\n500,x,2,x\n1000,8,2,x\n1500,9,2,y\n"
OPTIONS = ("--column", "arrival=ts", "--column", "prompt=a", "--column", "output=b", "--time-unit", "ms")
COMMANDS = {"run": ("run", "in.yaml"), "compare": ("compare", "in.yaml", "--policies", "orca,static"),
            "whatif": ("whatif", "in.yaml", "over.yaml"), "plan": ("plan", "plan.yaml", "--quick", "--no-cache"),
            "load": ("load", "in.yaml", "--rates", "1"),
            "capacity": ("capacity", "in.yaml", "--quick", "--slo", "mean e2e < 100 s"),
            "budget": ("plan", "plan.yaml", "--quick", "--no-cache", "--set", "budget.gpus=1")}


@pytest.fixture
def call(servecast, tmp_path, monkeypatch):
    for name, text in (("in.yaml", SCENARIO), ("plan.yaml", PLAN), ("over.yaml", OVERLAYS), ("t.csv", TRACE)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return lambda command, *more: servecast(*COMMANDS[command], *more)


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_row_is_named_by_its_file_first_and_no_option_of_ours(call, command, tmp_path):
    outcome = call(command, "--trace", "t.csv", *OPTIONS)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "t.csv: data row 2 (line 3): prompt (column 'a')" in outcome.err
    assert outcome.err.endswith("; --drop-bad-rows (bad_rows: drop) leaves out and counts such rows\n")
    assert "--set" not in outcome.err


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_rows_are_dropped_on_request_and_one_line_counts_them(call, command):
    outcome = call(command, "--trace", "t.csv", *OPTIONS, "--drop-bad-rows", "--where", "kind=x")
    assert outcome.code == 0
    line = [each for each in outcome.err.splitlines() if each.startswith("t.csv: ")]
    assert line == ["t.csv: 4 rows read, dropped: 1 not selected by where, 1 prompt must be a whole number >= 1"]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "compare"])
def test_page_and_json_have_the_same_line_and_the_rate_that_copies_make(call, command):
    """3 of the rows in 1.5 s are 2 gaps, 1.333 a second; four copies of them at a quarter of the speed are as many.
    A load test asks for rates of its own."""
    copies, slower = ("--set", "workload.trace.copies=4"), ("--set", "workload.trace.rate_scale=0.25")
    asked = (command, "--trace", "t.csv", *OPTIONS, "--drop-bad-rows", *copies)
    told = " ".join(call(*asked).err.split())
    assert command == "load" or "4 copies: 5.33 requests/s, where the log has 1.33" in told
    outcome = call(*asked, *slower, "--out", "out", "--json")
    assert outcome.code == 0, outcome.err
    said = "dropped: 1 prompt must be a whole number >= 1; 4 copies"
    said += " at 0.25 times its speed: 1.33 requests/s, where the log has 1.33" if command != "load" else ""
    page = Path("out/report.html").read_text()
    assert "4 rows read, " + said in page.replace("&gt;", ">") and said in " ".join(outcome.err.split())
    data = json.loads(outcome.out)
    trace = data["provenance"].get("traffic") or data["provenance"]["trace"] if "provenance" in data else data["trace"]
    assert (trace["rows_read"], sum(trace["rows_dropped"].values()), trace["copies"]) == (4, 1, 4)
    assert trace["account"] == "4 rows read, " + said


def test_plan_answers_for_the_trace(call):
    data = json.loads(call("plan", "--trace", "t.csv", *OPTIONS, "--drop-bad-rows", "--json", "-q").out)
    assert data["provenance"]["traffic"]["rows_read"] == 4
    assert data["plan"]["workload"]["trace"]["time_unit"] == "ms"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--drop-bad-rows", "--time-unit=s", "--where=a=b", "--column=arrival=ts"])
def test_options_of_reading_need_a_trace(call, command, option):
    outcome = call(command, option)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert option.partition("=")[0] in outcome.err and "--trace FILE" in outcome.err


def test_trace_that_is_not_there_is_named(call):
    outcome = call("run", "--trace", "no.csv")
    assert outcome.code == 2 and outcome.err.startswith("no.csv: no such file") and "--set" not in outcome.err


def test_plan_and_open_load_refuse_a_trace_without_arrival_times(call):
    Path("t.csv").write_text("prompt_tokens,output_tokens\n5,6\n7,8\n")
    for command in ("run", "plan"):
        outcome = call(command, "--trace", "t.csv")
        assert outcome.code == 2 and "no column for arrival times" in outcome.err
    assert call("run", "--trace", "t.csv", "--set", "load={kind: closed, width: 2}").code == 0


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_trace_outside_the_scenarios_folder_is_named_without_the_way_there(call, servecast, command):
    """`base/../t.csv` is how it is found, not what anybody wrote; a link on the way may not be skipped either."""
    Path("base").mkdir()
    name = COMMANDS[command][1]
    Path("base", name).write_text(Path(name).read_text())
    outcome = servecast(command, f"base/{name}", "--trace", "t.csv", *OPTIONS)
    assert outcome.code == 2 and outcome.err.startswith("t.csv: data row 2 (line 3)")
    missing = servecast(command, f"base/{name}", "--trace", "no.csv")
    assert missing.code == 2 and ".." not in missing.err and "no.csv" in missing.err
    Path("far", "deep").mkdir(parents=True)
    Path("link").symlink_to(Path("far", "deep"))
    Path("link", name).write_text(Path(name).read_text())
    Path("far", "x.csv").write_text(TRACE)
    outcome = servecast(command, f"link/{name}", "--set", "workload={trace: {path: ../x.csv}}", *OPTIONS)
    assert outcome.code == 2 and outcome.err.startswith("far/x.csv: data row 2 (line 3)"), outcome.err
