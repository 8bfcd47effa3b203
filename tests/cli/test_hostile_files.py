"""Files that would take all time or memory, or are no text at all: exit 2, one short line, nothing written.

Each entry stands for a kind. Time and memory of a whole process are looked at in the nightly version.
"""

import gzip
import json
import os
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.config import Document
from simulator.errors import ServecastError
from simulator.scenario.spec import scenario_from
from simulator.workload import load_trace

GOOD = "workload: {arrivals: {kind: poisson, rate: 5, requests: 20}, prompt: 100, output: 10}\nhardware: unit\n"
HEAD = "arrival_s,prompt_tokens,output_tokens\n"
LONGEST = 2_200


def bomb() -> str:
    """Ten levels of nine aliases: 3.5e9 values in 400 bytes."""
    levels = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 11)]
    return "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *levels]) + "\n"


SCENARIOS: dict[str, tuple[str, list[str]]] = {
    "alias bomb": (GOOD + bomb(), ["s.yaml:8", "more than 100,000 values"]),
    "alias of itself": (GOOD + "name: &a [*a]\n", ["s.yaml:3", "alias"]),
    "900 deep": (GOOD + "name: " + "[" * 900 + "]" * 900, ["s.yaml:3", "50 deep"]),
    "100,000 deep": (GOOD + "name: " + "[" * 100_000, ["s.yaml:3", "nest"]),
    "key of 1 MB": (GOOD + "k" * 10**6 + ": 1\n", ["s.yaml:3", "not readable YAML"]),
    "value of 5 MB": (GOOD + "name: " + "x" * 5 * 10**6, ["s.yaml", "accepted: at most 4,194,304"]),
    "comment of 5 MB": (GOOD + "#" + "x" * 5 * 10**6, ["s.yaml", "accepted: at most 4,194,304"]),
    "a million values": (GOOD + "name: [" + "1," * 10**6 + "1]", ["s.yaml", "100,000 values", "trace file"]),
    "type by tag": (GOOD + "seed: !!bool maybe\n", ["s.yaml:3", "tag", "bool", "!!str"]),
    "python by tag": (GOOD + "seed: !!python/name:os.system x\n", ["s.yaml:3", "tag"]),
    "time of day": (GOOD + "horizon_s: 1:30:00\n", ["s.yaml:3", "horizon_s must be a valid number", "'1:30:00'"]),
    "octal": (GOOD + "seed: 010\n", ["s.yaml:3", "seed must be a valid integer", "'010'"]),
    "number of 100,000 digits": (GOOD + "seed: " + "9" * 100_000, ["s.yaml:3", "100000 characters", "at most 400"]),
    "unclosed quote": (GOOD + 'name: "x\n', ["s.yaml:", "not readable YAML"]),
    "NUL": (GOOD + "name: a\0b\n", ["s.yaml", "control characters"]),
    "policy of 100,000 letters": (GOOD + "policy: " + "p" * 100_000, ["s.yaml:3", "chunked"]),
    "GPU of 100,000 letters": (GOOD.replace("unit", "g" * 100_000), ["s.yaml:2", "hardware.gpu"]),
    "20,000 unknown keys": (GOOD.replace("rate: 5", ", ".join(f"k{k}: 1" for k in range(20_000))),
                            ["s.yaml:1", "workload.arrivals.k0", "accepted"]),
    "list of 50,000 for a number": (GOOD + "seed: [" + "1," * 49_000 + "1]", ["s.yaml:3", "seed", "integer"]),
    "two documents": (GOOD + "---\n" + GOOD, ["s.yaml:3", "another document"]),
    "UTF-16": (GOOD.encode("utf-16").decode("latin-1"), ["s.yaml", "not UTF-8"]),
}


def refused(outcome, fragments: list[str]) -> None:
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1 and len(outcome.err) < LONGEST
    for fragment in fragments:
        assert fragment in outcome.err


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name, servecast, tmp_path):
    text, fragments = SCENARIOS[name]
    (tmp_path / "s.yaml").write_bytes(text.encode("latin-1" if name == "UTF-16" else "utf-8"))
    refused(servecast("run", tmp_path / "s.yaml", "--out", tmp_path / "out"), fragments)
    assert [each.name for each in tmp_path.iterdir()] == ["s.yaml"]


def test_what_yaml_1_2_reads_alike_still_reads(servecast, tmp_path):
    more = "seed: &s 7\nload: {kind: closed, width: *s}\nhorizon_s: 1e3\nname: !!str 5\nslo: {ttft_s: .5}\n"
    (tmp_path / "s.yaml").write_text("\ufeff" + (GOOD + more).replace("\n", "\r\n"))
    data = json.loads(servecast("run", tmp_path / "s.yaml", "--json", "--engine", "reference").out)["scenario"]
    assert (data["horizon_s"], data["slo"]["ttft_s"], data["name"], data["load"]["width"]) == (1000.0, 0.5, "5", 7)


def packed(head: bytes, block: bytes, times: int) -> bytes:
    pack = zlib.compressobj(6, zlib.DEFLATED, 31)
    return b"".join([pack.compress(head), *(pack.compress(block) for _ in range(times)), pack.flush()])


def table(**columns: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        counts = pa.array([5, 6])
        plain = {"arrival_s": pa.array([0.0, 1.0]), "prompt_tokens": counts, "output_tokens": counts}
        pq.write_table(pa.table({**plain, **columns}), path)

    return write


def twice(path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([0.0]), *[pa.array([1])] * 3],
                                        ["arrival_s", "prompt_tokens", "output_tokens", "output_tokens"]), path)


ROWS = (HEAD + "0,5,5\n" * 1000).encode()
TRACES: dict[str, tuple[str, Callable[[Path], None] | bytes, list[str]]] = {
    "gzipped newlines": ("t.csv.gz", packed(b"", b"\n" * 10**6, 300), ["blank lines"]),
    "gzipped newlines, JSON": ("t.jsonl.gz", packed(b"", b"\n" * 10**6, 300), ["blank lines"]),
    "gzipped rows": ("t.csv.gz", packed(HEAD.encode(), b"0,5,5\n" * 10**5, 700), ["more than 100 times"]),
    "gzipped JSON": ("t.json.gz", packed(b"[", b"0," * 10**6, 400), ["GiB of memory"]),
    "gzip cut off": ("t.csv.gz", gzip.compress(ROWS)[:40], ["cannot be read"]),
    "gzip with a wrong sum": ("t.csv.gz", gzip.compress(ROWS)[:-8] + b"12345678", ["cannot be read", "CRC"]),
    "gzip with a wrong block": ("t.jsonl.gz", gzip.compress(os.urandom(3000))[:20] + b"\xff" * 40, ["cannot be read"]),
    "field of 30 MB": ("t.csv", HEAD.encode() + b"0,5," + b"5" * 3 * 10**7, ["t.csv"]),
    "header of 30 MB": ("t.csv", b"x," * 15 * 10**6, ["t.csv:1", "header of"]),
    "JSON line of 130 MB": ("t.jsonl", b'{"a": "' + b"x" * 137 * 10**6, ["t.jsonl:1", "128 MiB"]),
    "JSON line nested": ("t.jsonl", b"[" * 10**6, ["data row 1 (line 1)", "unreadable row"]),
    "JSON nested": ("t.json", b"[" * 10**6, ["nested too deeply"]),
    "many small lists": ("t.json", b"[" + b"[]," * 15 * 10**6 + b"[]]", ["GiB of memory"]),
    "NUL in a header": ("t.csv", b"arrival_s\0,prompt_tokens,output_tokens\n0,5,5\n", ["t.csv:1", "NUL"]),
    "NUL in a class": ("t.csv", b"arrival_s,prompt_tokens,output_tokens,class\n0,5,5,a\0b\n", ["t.csv:2", "NUL"]),
    "nothing but zeros": ("t.csv", bytes(10**6), ["t.csv:1", "NUL"]),
    "unclosed quote": ("t.csv", HEAD.encode() + b'0,"5,5\n1,5,5\n', ["(line 2)", "2 fields"]),
    "time of day": ("t.csv", HEAD.encode() + b"1:30:00,5,5\n", ["(line 2)", "arrival", "'1:30:00'"]),
    "50,000 columns": ("t.jsonl", json.dumps({f"k{k}": k for k in range(50_000)}).encode(), ["2000 columns"]),
    "key of 1 MB": ("t.jsonl", b'{"' + b"k" * 10**6 + b'": 1}', ["the file has: kkk"]),
    "report of odd things": ("t.json", b'{"benchmarks": [1, {"requests": 5}, {"requests": {"errored": [3]}}]}',
                             ["empty"]),
    "lists for numbers": ("t.jsonl", b'{"arrival_s": 0, "prompt_tokens": [[5]], "output_tokens": {"a": 1}}',
                          ["'[[5]]'"]),
    "parquet that is none": ("t.parquet", b"PAR1xxxxPAR1", ["cannot be read"]),
    "parquet, list as class": ("t.parquet", table(**{"class": pa.array([[1], [2]])}), ["must name a class, got [1]"]),
    "parquet, bytes as class": ("t.parquet", table(**{"class": pa.array([b"\xff", b"a"])}), ["must name a class"]),
    "parquet, record as prompt": ("t.parquet", table(prompt_tokens=pa.array([{"a": 1}] * 2)), ["whole number"]),
    "parquet, truth as prompt": ("t.parquet", table(prompt_tokens=pa.array([True, True])), ["whole number", "True"]),
    "parquet, column twice": ("t.parquet", twice, ["must differ", "output_tokens"]),
}


@pytest.mark.parametrize("name", TRACES)
def test_trace(name, servecast, tmp_path):
    file, content, fragments = TRACES[name]
    content(tmp_path / file) if callable(content) else (tmp_path / file).write_bytes(content)
    (tmp_path / "s.yaml").write_text(f"workload: {{trace: {file}}}\nhardware: unit\n")
    refused(servecast("run", tmp_path / "s.yaml", "--out", tmp_path / "out"), [file, *fragments])
    assert not (tmp_path / "out").exists()


def test_where_on_a_column_of_lists(servecast, tmp_path):
    table(c=pa.array([[1], [2]]))(tmp_path / "t.parquet")
    refused(servecast("trace", "inspect", tmp_path / "t.parquet", "--where", "c=x"), ["t.parquet", "'c'"])


@pytest.mark.parametrize("command, suffix", [
    (["run", "{}"], ".yaml"), (["plan", "{}"], ".yaml"), (["sweep", "{}", "-o", "out"], ".yaml"),
    (["whatif", "chat", "{}"], ".yaml"), (["kv", "llama-3.1-8b", "{}"], ".yaml"), (["kv", "{}", "l4"], ".json"),
    (["trace", "inspect", "{}"], ".csv"), (["run", "chat", "--trace", "{}"], ".csv")])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "circle"])
def test_what_is_no_file_is_refused_and_never_waited_for(command, suffix, kind, servecast, tmp_path):
    path = tmp_path / f"x{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    outcome = servecast(*(each.replace("{}", str(path)) for each in command))
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and path.name in outcome.err


@pytest.mark.parametrize("axes, fragments", [
    ("\n".join(f"- grid: {{k{k}: {{low: 1, high: 2, steps: 1000}}}}" for k in range(4)), ["1000000000000 points"]),
    ("- random: {points: 1000000, keys: {seed: {low: 1, high: 9}}}\n- list: [{a: 1}, {a: 2}]", ["2000000 points"]),
])
def test_sweep_is_counted_before_its_points_are_made(axes, fragments, servecast, tmp_path):
    (tmp_path / "w.yaml").write_text("base: {workload: {requests: {output: [1]}}, hardware: unit}\naxes:\n" + axes)
    outcome = servecast("sweep", tmp_path / "w.yaml", "-o", tmp_path / "out")
    refused(outcome, ["w.yaml:", "at most 1,000,000", *fragments])


@pytest.mark.parametrize("change", ["requests: 1000000000", "duration_s: 100000000"])
def test_requests_beyond_memory_are_refused_before_they_are_drawn(change, servecast, tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.memory.free_bytes", lambda: 8 * 2**30)
    (tmp_path / "s.yaml").write_text(GOOD.replace("requests: 20", change))
    refused(servecast("run", tmp_path / "s.yaml"), ["s.yaml:1", "arrivals." + change.split(":")[0], "GiB"])


@pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.name), lambda path: path.mkdir() or (
    path / ".servecast.json").write_text("[" * 100_000), lambda path: path.mkdir() or (path / "x").touch()])
def test_output_folder_that_is_none_of_ours(make, servecast, tmp_path):
    (tmp_path / "s.yaml").write_text(GOOD)
    make(tmp_path / "out")
    refused(servecast("run", tmp_path / "s.yaml", "--out", tmp_path / "out"), ["out"])


def test_output_folder_with_a_name_that_is_no_text(servecast, tmp_path):
    (tmp_path / "s.yaml").write_text(GOOD)
    for command in (("run",), ("sweep",)):
        (tmp_path / "w.yaml").write_text("base: s.yaml\naxes: [{list: [{seed: 1}]}]\n")
        file = tmp_path / ("s.yaml" if command == ("run",) else "w.yaml")
        refused(servecast(*command, file, "--out", f"{tmp_path}/o\udcff"), ["UTF-8"])


@pytest.mark.parametrize("arguments", [[], ["trace"], ["sweep"], ["calibrate"]])
def test_missing_command_is_one_line_on_stderr(arguments, servecast):
    refused(servecast(*arguments), ["Missing command"])


def test_aliases_of_a_gpu_that_are_no_list(servecast, tmp_path):
    from hwprofiles import GPU_DIR

    text = (GPU_DIR / "h100-sxm.yaml").read_text().replace("aliases: [", "aliases: -1 # [")
    (tmp_path / "g.yaml").write_text(text)
    refused(servecast("kv", "llama-3.1-8b", tmp_path / "g.yaml"), ["g.yaml", "aliases must be a list of names, got -1"])


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from([10**18, 1e300, "", "x" * 999]),
                 st.text(), st.lists(st.integers(), max_size=3), st.dictionaries(st.text(), st.integers(), max_size=2))
KEYS = ("seed", "name", "workload", "workload.arrivals", "workload.arrivals.rate", "workload.prompt", "workload.trace",
        "workload.requests", "load", "load.width", "hardware", "hardware.gpu", "hardware.step_s", "policy",
        "policy.max_num_seqs", "kv", "kv.num_gpu_blocks", "slo", "slo.ttft_s", "cluster.replicas", "horizon_s")


@pytest.mark.nightly
@settings(max_examples=2_000, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS), JUNK), min_size=1, max_size=3))
def test_whatever_stands_in_a_section_is_read_or_refused(changes):
    document = Document("s", text=GOOD)
    for key, value in changes:
        document.assign(tuple(key.split(".")), value)
    try:
        scenario_from(document.data)
    except ServecastError as error:
        assert len(str(error)) < LONGEST


@pytest.mark.nightly
@settings(max_examples=1_000, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_as_yaml_are_read_or_refused(raw):
    try:
        Document("s", text=raw.decode("utf-8", "surrogateescape"))
    except ServecastError as error:
        assert len(str(error)) < LONGEST


@pytest.mark.nightly
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".csv", ".tsv", ".jsonl", ".json", ".parquet", ".csv.gz", ".jsonl.gz"]), st.booleans(),
       st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: (HEAD + text).encode(errors="ignore")),
                 st.recursive(JUNK, lambda x: st.lists(x) | st.dictionaries(st.sampled_from(
                     ["timestamp", "input_length", "output_length", "hash_ids", "benchmarks", "requests", "usage",
                      "input_lens", "output_lens", "conversations"]), x), max_leaves=9)
                 .map(lambda value: json.dumps(value).encode())))
def test_any_bytes_as_a_trace_are_read_or_refused(tmp_path, suffix, drop, raw):
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(raw) if suffix.endswith("gz") and len(raw) % 2 else raw)
    try:
        load_trace(path, bad_rows="drop" if drop else "error")
    except ServecastError as error:
        assert len(str(error)) < LONGEST


def spent(arguments: list[str], folder: Path) -> tuple[int, float, float]:
    """(exit code, CPU seconds, MiB at most) of a process."""
    process = subprocess.Popen([sys.executable, "-m", "simulator.cli.main", *arguments], cwd=folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        time.sleep(0.02)
    process.kill()
    raise AssertionError("still running after 120 s")


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize("name", [*SCENARIOS, *TRACES])
def test_time_and_memory(name, tmp_path):
    """2 s beyond what refusing a tiny file takes, and 1 GiB."""
    if name in SCENARIOS:
        (tmp_path / "s.yaml").write_bytes(SCENARIOS[name][0].encode("utf-8", "surrogatepass"))
        base = "workload: 3\n"
    else:
        file, content, _ = TRACES[name]
        content(tmp_path / file) if callable(content) else (tmp_path / file).write_bytes(content)
        (tmp_path / "s.yaml").write_text(f"workload: {{trace: {file}}}\nhardware: unit\n")
        (tmp_path / "small.csv").write_text(HEAD + "0,x,5\n")
        base = "workload: {trace: small.csv}\nhardware: unit\n"
    (tmp_path / "small.yaml").write_text(base)
    start = spent(["run", "small.yaml"], tmp_path)[1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    code, cpu, memory = spent(["run", "s.yaml"], tmp_path)
    assert code == 2
    assert cpu < start + 2
    assert memory <= max(1024, before)  # a child counts what its parent held when it was started
