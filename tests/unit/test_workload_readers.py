"""Trace files: each format read right. What is refused: test_workload_refusals."""

import datetime
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_files import GOOD, failure, write

from simulator.errors import ConfigError, TraceError
from simulator.workload import load_trace
from simulator.workload.load import load_lengths


def test_servecast_table_keeps_ids_times_and_provenance(tmp_path: Path) -> None:
    text = "id,arrival_s,prompt_tokens,output_tokens\n7,0.0,512,128\n15,0.000701,512,127\n"
    path = write(tmp_path, text)
    trace = load_trace(path)
    assert trace.id.tolist() == [7, 15]
    assert trace.arrival_ns.tolist() == [0, 701_000]
    assert trace.output.tolist() == trace.max_tokens.tolist() == [128, 127]
    assert trace.cached.tolist() == [0, 0]
    assert trace.meta.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert (trace.meta.format, trace.meta.rows_read) == ("servecast", 2)


def test_first_arrival_stays_as_given_or_is_shifted(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert load_trace(path).arrival_ns[0] == 500_000_000
    shifted = load_trace(path, shift_to_zero=True)
    assert shifted.arrival_ns.tolist() == [0, 750_000_000, 1_500_000_000]
    assert shifted.meta.origin_ns == 500_000_000


@pytest.mark.parametrize("zone", ["", "+00:00"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_azure_fraction_of_seven_digits(tmp_path: Path, zone: str, newline: str) -> None:
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        f"2023-11-16 18:15:46.6805900{zone},374,44",
        f"2023-11-16 18:15:50.9951690{zone},396,109",
    ]
    trace = load_trace(write(tmp_path, newline.join(rows)))
    assert trace.meta.format == "azure"
    assert trace.arrival_ns.tolist() == [0, 4_314_579_000]
    moment = datetime.datetime(2023, 11, 16, 18, 15, 46, 680590, tzinfo=datetime.UTC)
    seconds = int(moment.timestamp())
    assert trace.meta.origin_ns == seconds * 10**9 + moment.microsecond * 1000


def test_azure_2024_rows_without_fraction(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
    )
    assert load_trace(write(tmp_path, text)).arrival_ns.tolist() == [0, 990_070_000]


def test_burstgpt_failures_are_dropped_and_counted(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    trace = load_trace(write(tmp_path, text), columns={"class": "Model"})
    assert trace.meta.format == "burstgpt"
    assert trace.id.tolist() == [0, 2]
    assert trace.arrival_ns.tolist() == [5 * 10**9, 118 * 10**9]
    assert trace.meta.rows_dropped == {"failed request (0 response tokens)": 1}
    assert trace.class_names == ("ChatGPT", "GPT-4")
    assert trace.cls.tolist() == [0, 1]


def test_mooncake_milliseconds(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
        {"timestamp": 3052, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]},
    ]
    trace = load_trace(write(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl"))
    assert trace.meta.format == "mooncake"
    assert trace.arrival_ns.tolist() == [0, 3_052_000_000]
    assert trace.prompt.tolist() == [6758, 7322]


def test_vllm_bench_result_is_sorted_and_failures_dropped(tmp_path: Path) -> None:
    result = {
        "backend": "vllm",
        "completed": 3,
        "input_lens": [10, 11, 12, 13],
        "output_lens": [5, 0, 6, 7],
        "start_times": [900.5, 900.75, 900.25, 901.0],
        "errors": ["", "boom", "", ""],
        "percentiles": [50, 99],
    }
    trace = load_trace(write(tmp_path, json.dumps(result), "bench.json"))
    assert trace.meta.format == "vllm_bench"
    assert trace.id.tolist() == [2, 0, 3]
    assert trace.arrival_ns.tolist() == [0, 250_000_000, 750_000_000]
    assert trace.meta.rows_dropped == {"failed request (0 output tokens)": 1}


def test_sharegpt_with_token_counts_gives_lengths_only(tmp_path: Path) -> None:
    record = {"conversations": [{"from": "human", "value": "a", "tokens": 9}, {"tokens": 21}]}
    path = write(tmp_path, json.dumps([record, record]), "sharegpt.json")
    lengths = load_lengths(path, "sharegpt")
    assert (lengths.prompt.tolist(), lengths.output.tolist()) == ([9, 9], [21, 21])
    assert "no column for arrival times" in load_trace(path, format="sharegpt").meta.untimed


def test_sharegpt_without_counts_is_refused(tmp_path: Path) -> None:
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    path = write(tmp_path, json.dumps([record]), "sharegpt.json")
    with pytest.raises(TraceError, match="without token counts"):
        load_lengths(path)


@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("s", ["1.5", "2"]),
        ("ms", ["1500", "2000"]),
        ("us", ["1500000", "2e6"]),
        ("ns", ["1500000000", "2000000000"]),
    ],
)
def test_generic_columns_and_units(tmp_path: Path, unit: str, values: list[str]) -> None:
    text = f"when,p,o\n{values[0]},3,4\n{values[1]},5,6\n"
    columns = {"arrival": "when", "prompt": "p", "output": "o"}
    trace = load_trace(write(tmp_path, text), columns=columns, time_unit=unit)
    assert trace.arrival_ns.tolist() == [1_500_000_000, 2_000_000_000]


def test_unit_from_the_column_name_or_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_ms,prompt,output\n1,2,3\n")
    assert load_trace(path).arrival_ns.tolist() == [1_000_000]
    with pytest.raises(ConfigError, match="time_unit"):
        load_trace(write(tmp_path, "arrival,prompt,output\n1,2,3\n"))


def test_a_fraction_that_binary_numbers_miss_is_rounded_to_its_nanosecond(tmp_path: Path) -> None:
    """1.001 s is 1000999999.9999999 ns in doubles."""
    path = write(tmp_path, "arrival_s,prompt,output\n0,1,1\n1.001,1,1\n")
    assert load_trace(path).arrival_ns.tolist() == [0, 1_001_000_000]


def test_epoch_nanoseconds_keep_every_digit(tmp_path: Path) -> None:
    start = 1_700_000_000_123_456_789
    path = write(tmp_path, f"time_ns,prompt,output\n{start},1,1\n{start + 1},1,1\n")
    trace = load_trace(path, columns={"arrival": "time_ns"})
    assert trace.arrival_ns.tolist() == [0, 1]
    assert trace.meta.origin_ns == start


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.json", "t.csv", "t.csv.gz", "t.tsv"])
def test_the_same_rows_in_every_container(tmp_path: Path, name: str) -> None:
    columns = {
        "arrival_s": [0.0, 0.25, 9.0],
        "prompt_tokens": [5, 6, 7],
        "output_tokens": [1, 2, 3],
        "max_tokens": [4, 4, 4],
        "cached_tokens": [0, 6, 1],
        "class": ["b", "a", "b"],
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    separator = "\t" if name.endswith("tsv") else ","
    lines = [separator.join(columns), *(separator.join(str(v) for v in row.values()) for row in rows)]
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table(columns), path)
    elif name.endswith("json"):
        path.write_text(json.dumps(rows))
    elif name.endswith("jsonl"):
        path.write_text("\n".join(map(json.dumps, rows)))
    elif name.endswith("gz"):
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    else:
        path.write_text("\n".join(lines))
    trace = load_trace(path)
    assert trace.arrival_ns.tolist() == [0, 250_000_000, 9_000_000_000]
    assert trace.prompt.tolist() == [5, 6, 7]
    assert trace.max_tokens.tolist() == [4, 4, 4]
    assert trace.cached.tolist() == [0, 6, 1]
    assert [trace.class_names[code] for code in trace.cls] == ["b", "a", "b"]


def test_header_variants_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    text = "\ufeffTimestamp , Context_Tokens,generated tokens\n\n2023-11-16T18:00:00Z, 4 ,5\n\n"
    trace = load_trace(write(tmp_path, text))
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([4], [5])


def test_parquet_timestamps(tmp_path: Path) -> None:
    moments = pa.array([10**18 + 5, 10**18 + 9], pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"time": moments, "prompt": [1, 2], "output": [3, 4]}), tmp_path / "t.parquet")
    assert load_trace(tmp_path / "t.parquet").arrival_ns.tolist() == [0, 4]


def test_unsorted_rows_are_sorted_stably_on_request(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens\n2,1,1\n1,2,1\n2,3,1\n1,4,1\n0,5,1\n2,6,1\n"
    path = write(tmp_path, text)
    assert "data row 2" in failure(path)
    trace = load_trace(path, sort=True)
    assert trace.prompt.tolist() == [5, 2, 4, 1, 3, 6]
    assert trace.id.tolist() == [4, 1, 3, 0, 2, 5]
    assert load_trace(path, sort=True, limit=2).prompt.tolist() == [5, 2]


def test_where_selects_rows(tmp_path: Path) -> None:
    text = "case,arrival_s,prompt_tokens,output_tokens\na,5,1,1\nb,0,2,1\na,6,3,1\n"
    trace = load_trace(write(tmp_path, text), where={"case": "a"})
    assert trace.prompt.tolist() == [1, 3]
    assert trace.meta.rows_dropped == {"not selected by where": 1}
    assert "no column 'cse'" in failure(tmp_path / "trace.csv", where={"cse": "a"})


def test_columns_are_read_only_contiguous_and_typed(tmp_path: Path) -> None:
    for name, column in load_trace(write(tmp_path, GOOD)).columns():
        assert not column.flags.writeable and column.flags.c_contiguous
        assert column.dtype == (np.int32 if name == "cls" else np.int64)


class TestPublicData:
    """Facts of the published files, counted with other tools (wc, head)."""

    def test_azure_conversation_2023(self, data_dir: Path) -> None:
        trace = load_trace(data_dir / "traces" / "AzureLLMInferenceTrace_conv.csv")
        assert len(trace) == 19_366
        assert (trace.prompt[:3].tolist(), trace.output[:3].tolist()) == ([374, 396, 879], [44, 109, 55])
        assert trace.arrival_ns[:3].tolist() == [0, 4_314_579_000, 4_541_877_000]
        assert (trace.prompt[-1], trace.output[-1]) == (197, 183)

    def test_azure_code_2023(self, data_dir: Path) -> None:
        trace = load_trace(data_dir / "traces" / "AzureLLMInferenceTrace_code.csv")
        assert len(trace) == 8_819
        assert (trace.prompt[0], trace.output[0], trace.arrival_ns[1]) == (4808, 10, 52_000_000)

    def test_mooncake_conversation(self, data_dir: Path) -> None:
        trace = load_trace(data_dir / "traces" / "mooncake_conversation.jsonl")
        assert len(trace) == 12_031
        assert (trace.prompt[-1], trace.output[-1]) == (20_774, 508)
        assert trace.arrival_ns[-1] == 3_536_999_000_000

    def test_measured_runs(self, data_dir: Path) -> None:
        paths = sorted((data_dir / "measurements").glob("*/*/requests.csv"))
        if not paths:
            pytest.skip(f"no measured runs under {data_dir}")
        for path in paths:
            trace = load_trace(path)
            assert len(trace) == sum(1 for line in path.read_text().splitlines() if line) - 1
            assert sorted(trace.id.tolist()) == list(range(len(trace)))
