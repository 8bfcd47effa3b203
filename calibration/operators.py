"""Operator measurements of one GPU as plain rows, from either JSON layout in calibration/measurements.

`servecast-ops/1` is what the harness writes (calibration/harness.py); the other layout is a table of what
good libraries reach. Where our attention kernel is more than 15 % behind a library, the library's rows make
the profile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.harness import SCHEMA
from simulator.config import shown
from simulator.errors import CalibrationError
from simulator.reading import MAX_RESULT, ReadError, read_json

Rows = Sequence[Mapping[str, Any]]

SHAPE: Final = {"heads": 32, "kv_heads": 8, "head_size": 128, "block_size": 16, "kv_dtype": "bf16"}
"""Attention rows used: the shape of Llama-3.1-8B."""
FP8_ROWS: Final = 1024
"""[rows] from here a product is limited by arithmetic in both formats."""
TABLES: Final = ("gemm", "paged_decode", "paged_prefill", "paged_decode_fa3", "paged_prefill_fa3",
                 "layer_remainder")
"""Tables of either layout."""


@dataclass(frozen=True)
class Operators:
    """Rows of each operator; times in us. `layer_us` is (rows m, us) of a layer's elementwise kernels together."""

    name: str
    gemm: Rows  # m, n, k, us; 16 bits
    decode: Rows  # batch, context, us
    prefill: Rows  # batch, length, us; no earlier context
    fp8_gain: float | None = None  # how much faster large products run in 8 bits
    layer_us: Sequence[tuple[int, float]] = field(default=())


def load_operators(path: Path) -> Operators:
    """Read either layout. Raises CalibrationError for an unreadable file or a missing table."""
    try:
        content = read_json(path, MAX_RESULT)
    except ReadError as error:
        raise CalibrationError(f"{path}: not a readable JSON file: {error}") from error
    _check_tables(content, path)
    if isinstance(content, dict) and content.get("schema") == SCHEMA:
        try:
            return _harness(content, path)
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"{path}: a row lacks a field or holds no number: {error!r}") from error
    if not isinstance(content, dict) or not {"gemm", "paged_decode_fa3", "paged_prefill_fa3"} <= set(content):
        raise CalibrationError(
            f"{path}: needs gemm, paged_decode_fa3 and paged_prefill_fa3, or schema {SCHEMA}"
        )
    return Operators(path.name, content["gemm"], content["paged_decode_fa3"], content["paged_prefill_fa3"])


def all_reduce_curve(path: Path, gpus: int, kernel: str = "NCCL") -> dict[str, Any] | None:
    """Profile entry `all_reduce_N` from a harness file of several GPUs; None where it measured none.

    Raises CalibrationError for a file that cannot be read.
    """
    try:
        rows = read_json(path, MAX_RESULT).get("all_reduce", [])
    except (ReadError, AttributeError) as error:
        raise CalibrationError(f"{path}: not a readable JSON file: {error}") from error
    found = sorted(
        (int(row["bytes"]), round(float(row["us"]), 2))
        for row in rows
        if row["gpus"] == gpus and row["kernel"] == kernel
    )
    if len(found) < 2:
        return None
    source = f"calibration/measurements/{path.name}: {kernel} in a CUDA graph"
    return {
        "points": [list(point) for point in found],
        "unit": "[bytes, us]",
        "mark": "measured",
        "source": source,
    }


def _check_tables(content: object, path: Path) -> None:
    """Refuse a table that is read here and is not a list of mappings."""
    for name in TABLES:
        rows = content.get(name, []) if isinstance(content, dict) else []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise CalibrationError(f"{path}: table {name} must be a list of rows, got {shown(rows)}")


def _harness(content: dict[str, Any], path: Path) -> Operators:
    missing = [name for name in ("gemm", "paged_decode", "paged_prefill") if not content.get(name)]
    if missing:
        raise CalibrationError(f"{path}: table {missing[0]} is missing")
    gemm = content["gemm"]
    wide = [row for row in gemm if row["dtype"] == "bf16"]
    prefill = [
        {"batch": row["batch"], "length": row["queries"], "us": row["us"], "TFLOPs": row["TFLOPs"]}
        for row in _alike(content["paged_prefill"])
        if row["past"] == 0
    ]
    remainder = [
        row
        for row in content.get("layer_remainder", [])
        if row["op"] == "all" and row["tp"] == 1 and row["model"] == "llama-3.1-8b"
    ]
    return Operators(
        path.name,
        wide,
        _alike(content["paged_decode"]),
        prefill,
        _fp8_gain(gemm),
        [(int(row["m"]), float(row["us"])) for row in sorted(remainder, key=lambda row: row["m"])],
    )


def _alike(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(row.get(key) == value for key, value in SHAPE.items())]


def _fp8_gain(rows: Rows) -> float | None:
    """Median ratio of 16-bit to 8-bit times over equal large products."""

    def key(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return int(row["m"]), int(row["n"]), int(row["k"])

    wide = {key(row): float(row["us"]) for row in rows if row["dtype"] == "bf16"}
    ratios = [
        wide[key(row)] / float(row["us"])
        for row in rows
        if row["dtype"] == "e4m3" and row["m"] >= FP8_ROWS and key(row) in wide
    ]
    return float(np.median(ratios)) if ratios else None


def layer_start_us(operators: Operators) -> float | None:
    """[us] that a layer's elementwise kernels and decode attention take with next to nothing to do."""
    if not operators.layer_us:
        return None
    return operators.layer_us[0][1] + min(float(row["us"]) for row in operators.decode)


def elementwise_bandwidth(operators: Operators, traffic: float, rows: int = 2048) -> float | None:
    """[B/s] from the growth of the elementwise kernels' time up to `rows` rows of `traffic` bytes each."""
    inside = [(m, us) for m, us in operators.layer_us if m <= rows]
    if len(inside) < 2:
        return None
    (first, low), (last, high) = inside[0], inside[-1]
    return traffic * (last - first) / ((high - low) * 1e-6)
