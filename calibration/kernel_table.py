"""Markdown tables of a harness result: kernel, time, achieved rate, share of the measured ceiling and of the limit.

`python -m calibration.kernel_table` prints those of docs/kernels.md from the shipped measurements.

The measured ceilings are the best read bandwidth of the same file and its 8192 x 8192 x 8192 product; the limits
are the vendor's datasheet figures of the H100 SXM (NVIDIA H100 Tensor Core GPU datasheet: 3.35 TB/s, 989.4 TFLOP/s
dense bf16, 1978.9 dense fp8; NVLink 900 GB/s, both directions together). The H200 has the same but for 4.8 TB/s
(NVIDIA H200 Tensor Core GPU datasheet).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from calibration.harness import SCHEMA
from simulator.errors import CalibrationError

Row = Mapping[str, Any]

DATASHEET_READ_GBPS = 3350.0
DATASHEET_TFLOPS = {"bf16": 989.4, "e4m3": 1978.9}
DATASHEET_NVLINK_GBPS = 450.0  # one direction


DECODE_SHAPE = {"heads": 32, "head_size": 128, "block_size": 16, "kv_dtype": "bf16"}
PREFILL_SHAPE = {"heads": 32, "head_size": 128, "block_size": 16}


def load_result(path: Path) -> dict[str, Any]:
    """Read a harness file. Raises CalibrationError where it is missing, malformed or of another schema."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: not a harness file: {error}") from None
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != SCHEMA:
        raise CalibrationError(f"{path}: schema is {schema!r}, accepted: {SCHEMA!r}")
    assert isinstance(result, dict)
    return result


def find(rows: Iterable[Row], **want: object) -> Row | None:
    """The row whose values equal `want`, None where there is none."""
    return next((r for r in rows if all(r.get(k) == v for k, v in want.items())), None)


def read_ceiling(result: Row) -> float:
    """Best read bandwidth over buffers of 1 GiB and more, GB/s."""
    rates = [r["GBps"] for r in result["bandwidth"] if r["what"] == "read" and r["bytes"] >= 2**30]
    return float(max(rates))


def gemm_ceiling(result: Row, dtype: str = "bf16") -> float:
    """Rate of the 8192 x 8192 x 8192 product, TFLOP/s."""
    row = find(result["ceiling"], what=f"gemm 8192x8192x8192 {dtype}")
    if row is None:
        raise CalibrationError(f"harness file: no ceiling for {dtype}")
    return float(row["TFLOPs"])


def decode_rows(result: Row, fa3: Iterable[Row]) -> list[list[str]]:
    """Paged decode, 32 query and 8 KV heads of size 128, block 16: bf16 and e4m3 beside FA3."""
    ceiling, library = read_ceiling(result), list(fa3)
    shape = {"heads": 32, "kv_heads": 8, "head_size": 128, "block_size": 16}
    lines = []
    for r in result["paged_decode"]:
        if not all(r[k] == v for k, v in shape.items()) or r["kv_dtype"] != "bf16":
            continue
        at = {"batch": r["batch"], "context": r["context"]}
        other, fp8 = find(library, **at), find(result["paged_decode"], kv_dtype="e4m3", **shape, **at)
        rate = r["kv_GBps"]
        line = [f"{r['batch']} x {r['context']}", f"{r['us']:.1f}", f"{rate:.0f}", percent(rate, ceiling)]
        line += [percent(rate, DATASHEET_READ_GBPS)]
        line += [f"{other['us']:.1f}", f"{other['kv_GBps']:.0f}"] if other else ["", ""]
        line += [f"{fp8['us']:.1f}", f"{fp8['kv_GBps']:.0f}"] if fp8 else ["", ""]
        lines.append(line)
    return lines


def prefill_rows(result: Row, fa3: Iterable[Row]) -> list[list[str]]:
    """Paged prefill, 32 query and 8 KV heads of size 128, block 16, beside FA3 where it was measured."""
    ceiling, library = gemm_ceiling(result), list(fa3)
    lines = []
    for r in result["paged_prefill"]:
        if (r["heads"], r["head_size"], r["block_size"]) != (32, 128, 16):
            continue
        other = find(library, batch=r["batch"], length=r["queries"]) if r["past"] == 0 else None
        line = [f"{r['batch']} x {r['queries']}", str(r["past"]), f"{r['us']:.1f}", f"{r['TFLOPs']:.0f}"]
        line += [percent(r["TFLOPs"], ceiling), percent(r["TFLOPs"], DATASHEET_TFLOPS["bf16"])]
        lines.append([*line, *([f"{other['us']:.1f}", f"{other['TFLOPs']:.0f}"] if other else ["", ""])])
    return lines


def gemm_rows(result: Row, model: str, dtype: str, rows: tuple[int, ...]) -> list[list[str]]:
    """One line an operation and row count: time, rate, and the larger share of the two ceilings."""
    read, rate = read_ceiling(result), gemm_ceiling(result, dtype)
    lines = []
    for r in result["gemm"]:
        if (r["model"], r["tp"], r["dtype"]) == (model, 1, dtype) and r["m"] in rows:
            bound = max((r["GBps"] / read, "read"), (r["TFLOPs"] / rate, "product"))
            line = [r["op"], str(r["m"]), f"{r['us']:.1f}", f"{r['GBps']:.0f}", f"{r['TFLOPs']:.0f}"]
            lines.append([*line, f"{100 * bound[0]:.0f} % of {bound[1]}"])
    return lines


def all_reduce_rows(result: Row) -> list[list[str]]:
    """All-reduce of two GPUs by size: NCCL and the one-shot kernel."""
    lines = []
    for r in result["all_reduce"]:
        if r["kernel"] != "NCCL" or r["gpus"] != 2:
            continue
        own = find((x for x in result["all_reduce"] if x["kernel"] != "NCCL"), gpus=2, bytes=r["bytes"])
        line = [f"{r['bytes'] // 1024}", f"{r['us']:.1f}", f"{r['bus_GBps']:.0f}"]
        line += [f"{own['us']:.1f}", f"{own['bus_GBps']:.0f}"] if own else ["", ""]
        best = max(r["bus_GBps"], own["bus_GBps"] if own else 0)
        lines.append([*line, percent(best, DATASHEET_NVLINK_GBPS)])
    return lines


def card_rows(one: Row, other: Row) -> list[list[str]]:
    """The same kernels on two cards: time on each, and how much faster the second is."""
    lines = []
    for batch, context in ((1, 2048), (16, 2048), (64, 2048), (64, 8192), (256, 8192)):
        want = {**DECODE_SHAPE, "batch": batch, "context": context}
        lines.append(_pair(f"decode {batch} x {context}", "paged_decode", one, other, want))
    for queries, past in ((512, 0), (2048, 0), (8192, 0), (2048, 32768)):
        want = {**PREFILL_SHAPE, "batch": 1, "queries": queries, "past": past}
        lines.append(_pair(f"prefill {queries} after {past}", "paged_prefill", one, other, want))
    for op, rows in (("gate_up", 1), ("gate_up", 64), ("gate_up", 256), ("gate_up", 512), ("gate_up", 8192)):
        want = {"model": "llama-3.1-8b", "tp": 1, "dtype": "bf16", "op": op, "m": rows}
        lines.append(_pair(f"{op}, {rows} row{'s' * (rows > 1)}", "gemm", one, other, want))
    return lines


def _pair(name: str, table: str, one: Row, other: Row, want: Row) -> list[str]:
    a, b = (find(result[table], **want) for result in (one, other))
    if a is None or b is None:
        raise CalibrationError(f"no row of {table} for {name}")
    return [name, f"{a['us']:.1f}", f"{b['us']:.1f}", f"{a['us'] / b['us']:.2f}"]


def percent(value: float, whole: float) -> str:
    """Share as a whole percentage."""
    return f"{100 * value / whole:.0f} %"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, first column left, the others right aligned."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *rows))


def tables(folder: Path) -> list[str]:
    """The tables of docs/kernels.md from the measurements in `folder`. Raises CalibrationError."""
    own, pair = (load_result(folder / name) for name in ("ops-h100.json", "ops-h100-pair.json"))
    h200, h200_pair = (load_result(folder / name) for name in ("ops-h200.json", "ops-h200-pair.json"))
    fa3 = json.loads((folder / "operators-h100.json").read_text(encoding="utf-8"))
    decode = ["batch x context", "us", "GB/s", "of read", "of 3350 GB/s", "FA3 us", "FA3 GB/s", "e4m3 us", "e4m3 GB/s"]
    prefill = ["batch x queries", "earlier context", "us", "TFLOP/s", "of GEMM", "of 989 TFLOP/s", "FA3 us"]
    product = ["operation", "rows", "us", "GB/s", "TFLOP/s", "nearest ceiling"]
    reduce = ["KiB", "NCCL us", "bus GB/s", "one-shot us", "bus GB/s", "best of 450 GB/s"]
    shown = [line for line in prefill_rows(own, fa3["paged_prefill_fa3"]) if line[1] in ("0", "8192", "32768")]
    return [
        markdown(decode, decode_rows(own, fa3["paged_decode_fa3"])),
        markdown([*prefill, "FA3 TFLOP/s"], shown),
        markdown(product, gemm_rows(own, "llama-3.1-8b", "bf16", (1, 64, 256, 512, 2048, 8192))),
        markdown(reduce, all_reduce_rows(pair)),
        markdown(["kernel", "H100 us", "H200 us", "times faster"], card_rows(own, h200)),
        markdown(reduce, all_reduce_rows(h200_pair)),
    ]


if __name__ == "__main__":
    print("\n\n".join(tables(Path(__file__).resolve().parent / "measurements")))
