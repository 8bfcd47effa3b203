"""What is printed fits: prose and tables within the terminal, 100 columns where there is none; JSON as it is."""

import json
import sys

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from simulator.cli.common import note, show, wrapped

COMMANDS = [
    ("run", "chat", "--set", "workload.arrivals.requests=60"),
    ("run", "chat", "--set", "workload.arrivals.requests=60", "--set", "host.name=slow"),
    ("run", "overload", "--set", "workload.arrivals.duration_s=20"),
    ("compare", "wx_four_slots", "wx_three_slots", "wx_idle_slots", "wx_idle_slots_waiting"),
    ("kv", "gpt-oss-20b", "h100-sxm", "l40s"),
    ("kv", "llama-3.1-70b", "h100-sxm", "b200-sxm"),
    ("toy", "4", "4", "10", "10", "4", "4", "--memory", "14"),
    ("toy", "4", "4", "10", "10", "4", "4", "--fair"),
    ("policies",), ("hardware",), ("models",), ("engines",), ("scenarios",),
    ("policies", "fastserve"), ("policies", "sarathi"),
    ("--help",), ("plan", "--help"), ("calibrate", "engine", "--help"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_lines_fit_100_columns(command, servecast):
    outcome = servecast(*command)
    assert outcome.code == 0
    assert max(map(len, (outcome.out + outcome.err).splitlines())) <= 100


def test_words_and_cells_are_whole_whatever_the_width(capsys, monkeypatch):
    """Every word comes back, in its order, from text, from groups and from tables too wide for a line."""
    words = [f"word{k}" for k in range(60)]
    table = Table("a", "b")
    table.add_row(" ".join(words), "x" * 150)
    for width in (40, 100):
        monkeypatch.setattr("simulator.cli.common.WIDTH", width)
        show(" ".join(words), Group(Text(" ".join(words)), Text("end")), table)
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= width
        assert printed.replace("\n", " ").split().count("word7") == 3
        assert printed.count("x") == 150
        note(" ".join(words))
        said = capsys.readouterr().err
        assert said.split() == words and max(map(len, said.splitlines())) <= width


def test_a_path_longer_than_a_line_is_not_broken():
    path = "/tmp/" + "deep/" * 40
    assert path in wrapped(f"results are in {path} as ever", 100).split()


def test_a_line_that_goes_on_stands_further_in():
    assert wrapped("  part  " + "long " * 6, 20).splitlines()[1].startswith("    long")


def test_json_is_never_wrapped(servecast):
    out = servecast("run", "chat", "--set", "workload.arrivals.requests=60", "--json").out
    assert max(map(len, out.splitlines())) > 200 and json.loads(out)


def test_an_error_is_one_line_in_a_file_and_wrapped_on_a_terminal(servecast, monkeypatch):
    whole = servecast("calibrate", "engine").err
    assert whole.count("\n") == 1 and len(whole) > 100
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: type("Size", (), {"columns": 60}))
    narrow = servecast("calibrate", "engine").err
    assert narrow.split() == whole.split() and max(map(len, narrow.splitlines())) <= 60


def test_a_number_and_its_unit_stay_on_one_line(capsys):
    text = "TTFT 7.28 ms, 12 % of 3 GPUs in 40 s; " * 20
    show(text, Text(text))
    note(text)
    printed = capsys.readouterr()
    for line in (printed.out + printed.err).splitlines():
        assert not line.rstrip().endswith(tuple("0123456789")), line
    assert (printed.out + printed.err).split() == 3 * text.split()
