"""Trace files that are wrong: what is wrong is named by file, row and line, and dropped rows are counted."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_files import GOOD, failure, write

from simulator.errors import ConfigError, TraceError, UnknownNameError
from simulator.workload import load_trace

BAD_ROWS = [
    ("-0.5,10,3", "arrival (column 'arrival_s') must be >= 0, got '-0.5'"),
    (
        ",10,3",
        "arrival (column 'arrival_s') must be a number in s within 292 years, got nothing (missing value)",
    ),
    ("soon,10,3", "arrival (column 'arrival_s') must be a number in s within 292 years, got 'soon'"),
    ("nan,10,3", "arrival (column 'arrival_s') must be a number in s within 292 years, got 'nan'"),
    ("inf,10,3", "arrival (column 'arrival_s') must be a number in s within 292 years, got 'inf'"),
    ("3.0,0,3", "prompt (column 'prompt_tokens') must be >= 1, got '0'"),
    ("3.0,-4,3", "prompt (column 'prompt_tokens') must be >= 1, got '-4'"),
    ("3.0,1.5,3", "prompt (column 'prompt_tokens') must be a whole number >= 1, got '1.5'"),
    ("3.0,10,0", "output (column 'output_tokens') must be >= 1, got '0'"),
    ("3.0,10,", "output (column 'output_tokens') must be a whole number >= 1, got nothing (missing value)"),
    ("3.0,10,3000000000", "output (column 'output_tokens') must be <= 2147483647 tokens, got '3000000000'"),
    ("3.0,10", "unreadable row: 2 fields, accepted: 3"),
    ("3.0,10,3,4", "unreadable row: 4 fields, accepted: 3"),
    (
        "1.0,10,3",
        "must not be before the row above, got 1.000000 s after 2.000000 s; sort: true accepts any order",
    ),
    (
        "1700000000,10,3",
        "epoch and relative times are mixed: 1700000000.000 s after 0.500 s in the first row",
    ),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS, ids=[row for row, _ in BAD_ROWS])
def test_bad_row_is_named_by_file_row_and_line(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path, GOOD.replace("\n1.25", "\n\n1.25") + row + "\n4.0,1,1\n")
    text = failure(path)
    assert text.startswith(f"{path}: data row 4 (line 6): ")
    assert message in text


def test_bad_row_far_down_the_file(tmp_path: Path) -> None:
    lines = [f"{row}.0,10,3" for row in range(400_000)]
    lines[312_345] = "312345.0,10,x"
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + "\n".join(lines))
    assert ": data row 312346 (line 312347): output" in failure(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"arrival_s": 3, "prompt_tokens": 1}',
            "output (column 'output_tokens') must be a whole number >= 1, got nothing",
        ),
        ('{"arrival_s": 3, "prompt_tokens": true, "output_tokens": 1}', "prompt (column 'prompt_tokens')"),
        ('{"arrival_s": 3, ', "unreadable row"),
        ("[1, 2]", "unreadable row"),
    ],
)
def test_bad_json_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    good = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}'
    path = write(tmp_path, f"{good}\n\n{line}\n", "t.jsonl")
    text = failure(path)
    assert text.startswith(f"{path}: data row 2 (line 3): ")
    assert message in text


def test_bad_parquet_row_is_named(tmp_path: Path) -> None:
    table = pa.table({"arrival_s": [0.0, 1.0, None], "prompt_tokens": [1, 2, 3], "output_tokens": [1, 1, 1]})
    pq.write_table(table, tmp_path / "t.parquet")
    text = failure(tmp_path / "t.parquet")
    assert (
        "t.parquet: data row 3: arrival (column 'arrival_s') must be a number in s within 292 years, got noth"
        in text
    )


def test_limits_and_cached_tokens_are_checked(tmp_path: Path) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,max_tokens,cached_tokens\n"
    assert "max_tokens (column 'max_tokens') must be >= output tokens, got '2'" in failure(
        write(tmp_path, header + "0,10,3,2,0\n")
    )
    assert "cached (column 'cached_tokens') must be <= prompt tokens, got '11'" in failure(
        write(tmp_path, header + "0,10,3,3,11\n")
    )


def test_repeated_id_is_named_in_the_file(tmp_path: Path) -> None:
    text = "id,arrival_s,prompt_tokens,output_tokens\n3,0,1,1\n4,1,1,1\n3,2,1,1\n"
    assert ": data row 3 (line 4): id (column 'id') must be unique, got 3 again" in failure(
        write(tmp_path, text)
    )


@pytest.mark.parametrize("text", ["", "\n\n", "arrival_s,prompt_tokens,output_tokens\n"])
def test_empty_trace(tmp_path: Path, text: str) -> None:
    assert "empty trace" in failure(write(tmp_path, text))


def test_times_out_of_order_are_named_as_they_are_written(tmp_path: Path) -> None:
    """Two hours east of Greenwich it is 08:00:05.25 there, and 2.25 s earlier in the row below."""
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-11-27T10:00:05.250+02:00,10,3\n2026-11-27T08:00:03Z,10,3\n"
    text = failure(write(tmp_path, rows))
    assert "got 2026-11-27T08:00:03.000000Z after 2026-11-27T08:00:05.250000Z; sort: true" in text
    assert "trace inspect: --sort" in text


def test_all_rows_dropped_is_an_empty_trace(tmp_path: Path) -> None:
    text = "Timestamp,Request tokens,Response tokens\n1,5,0\n"
    assert "empty trace: all of 1 row dropped (1 failed request" in failure(write(tmp_path, text))


def test_dropping_bad_rows_counts_each_reason(tmp_path: Path) -> None:
    text = GOOD + "2.5,0,1\n2.5,x,1\n2.5,1\n2.6,7,8\n2.6,0,0\n"
    trace = load_trace(write(tmp_path, text), bad_rows="drop")
    assert trace.prompt.tolist() == [10, 20, 30, 7]
    assert sum(trace.meta.rows_dropped.values()) == 4
    assert trace.meta.rows_dropped["unreadable row"] == 1
    assert trace.meta.rows_dropped["prompt must be >= 1"] == 2
    assert trace.meta.rows_read == 8


def test_row_numbers_stay_right_after_dropped_rows(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n1,1\n\n2,1,1\nx,1,1\n1,1,1\n"
    assert ": data row 4 (line 6): arrival" in failure(write(tmp_path, text), bad_rows="drop")


def test_unknown_format_part_column_and_missing_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(UnknownNameError, match="azure"):
        load_trace(path, format="azur")
    with pytest.raises(ConfigError, match=r"columns\.promt"):
        load_trace(path, columns={"promt": "prompt_tokens"})
    assert "no column 'nope'; the file has: arrival_s" in failure(path, columns={"prompt": "nope"})
    assert "format azure needs TIMESTAMP" in failure(path, format="azure")
    assert "no such trace file" in failure(tmp_path / "absent.csv")
    assert "unknown suffix" in failure(write(tmp_path, GOOD, "trace.xls"))


def test_wrong_unit_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "t,prompt,output\n0,1,1\n90000000000,1,1\n")
    with pytest.raises(TraceError, match="must be a number in s within 292 years"):
        load_trace(path, columns={"arrival": "t"}, time_unit="s")


@pytest.mark.parametrize("content", [b"\x1f\x8bbroken", b"a,b\n\xff\xfe\xff,1\n"])
def test_damaged_files_raise_trace_errors(tmp_path: Path, content: bytes) -> None:
    name = "t.csv.gz" if content.startswith(b"\x1f") else "t.csv"
    assert str(tmp_path) in failure(write(tmp_path, content, name))
