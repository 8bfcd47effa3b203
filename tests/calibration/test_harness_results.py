"""The committed harness files: complete, internally consistent, within physical limits, and at the kernels' goals."""

import json
from pathlib import Path
from typing import Any

import pytest

from calibration import kernel_table as table
from calibration.harness import schema_problems
from simulator.errors import CalibrationError

FOLDER = Path(__file__).resolve().parents[2] / "calibration" / "measurements"
FILES = sorted(FOLDER.glob("ops-*.json"))
H100, H200 = FOLDER / "ops-h100.json", FOLDER / "ops-h200.json"
CARDS = pytest.mark.parametrize("card", [H100, H200], ids=lambda p: p.stem)
PEAK_READ_GBPS = {H100: 3350.0, H200: 4800.0}  # datasheets of the two cards
PEAK_NVLINK_GBPS = 450.0  # NVIDIA H100 datasheet: 900 GB/s, both directions together


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return table.load_result(H100)


def of(rows: list[dict[str, Any]], **want: object) -> dict[str, Any]:
    row = table.find(rows, **want)
    assert row is not None, want
    return dict(row)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_keep_the_schema_and_every_check_passed(path: Path) -> None:
    assert schema_problems(table.load_result(path)) == []


def test_sanitizer_found_nothing_in_any_program(result: dict[str, Any]) -> None:
    runs = {(r["program"], r["tool"]): r for r in result["sanitizer"]}
    assert {p for p, _ in runs} == {"memory", "decode", "prefill", "layer", "collective"}
    assert {t for _, t in runs} == {"memcheck", "racecheck"}
    assert all(r["exit_status"] == 0 for r in runs.values())


def test_decode_rate_follows_from_time_and_bytes(result: dict[str, Any]) -> None:
    width = {"bf16": 2, "e4m3": 1}
    for r in result["paged_decode"]:
        values = r["batch"] * r["context"] * r["kv_heads"] * r["head_size"] * 2
        assert r["kv_GBps"] == pytest.approx(values * width[r["kv_dtype"]] / r["us"] / 1e3, rel=1e-4)


def test_prefill_rate_follows_from_time_and_causal_pairs(result: dict[str, Any]) -> None:
    for r in result["paged_prefill"]:
        q, past = r["queries"], r["past"]
        pairs = r["batch"] * sum(past + i + 1 for i in range(q))
        assert r["pairs"] == pytest.approx(pairs, rel=1e-4)
        assert r["TFLOPs"] == pytest.approx(4e-6 * r["head_size"] * r["heads"] * pairs / r["us"], rel=1e-4)


@CARDS
def test_nothing_is_faster_than_the_hardware(card: Path) -> None:
    result, peak = table.load_result(card), PEAK_READ_GBPS[card]
    large = [r for r in result["paged_decode"] if r["batch"] * r["context"] >= 2**17]
    assert max(r["kv_GBps"] for r in large) < peak
    assert table.read_ceiling(result) < peak
    for r in result["gemm"]:
        assert r["TFLOPs"] < table.DATASHEET_TFLOPS[r["dtype"]]
        assert r["GBps"] < peak
    assert max(r["TFLOPs"] for r in result["paged_prefill"]) < table.DATASHEET_TFLOPS["bf16"]


@pytest.mark.parametrize("name", ["ops-h100-pair.json", "ops-h200-pair.json"])
def test_all_reduce_is_within_nvlink(name: str) -> None:
    rows = table.load_result(FOLDER / name)["all_reduce"]
    assert {r["kernel"] for r in rows} == {"NCCL", "own one-shot over peer memory"}
    assert max(r["bus_GBps"] for r in rows) < PEAK_NVLINK_GBPS


@CARDS
def test_decode_reaches_its_share_of_measured_read_bandwidth(card: Path) -> None:
    result = table.load_result(card)
    shape = {"heads": 32, "head_size": 128, "block_size": 16, "kv_dtype": "bf16", "batch": 64}
    ceiling = table.read_ceiling(result)
    assert of(result["paged_decode"], context=8192, **shape)["kv_GBps"] >= 0.90 * ceiling
    assert of(result["paged_decode"], context=2048, **shape)["kv_GBps"] >= 0.80 * ceiling


@CARDS
def test_prefill_reaches_half_the_measured_gemm_rate(card: Path) -> None:
    result = table.load_result(card)
    shape = {"heads": 32, "head_size": 128, "block_size": 16, "batch": 1}
    ceiling = table.gemm_ceiling(result)
    assert of(result["paged_prefill"], queries=8192, past=0, **shape)["TFLOPs"] >= 0.50 * ceiling


def test_own_kernels_are_at_most_15_percent_behind_fa3(result: dict[str, Any]) -> None:
    fa3 = json.loads((FOLDER / "operators-h100.json").read_text())
    shape = {"heads": 32, "head_size": 128, "block_size": 16, "kv_dtype": "bf16"}
    for r in fa3["paged_decode_fa3"]:
        own = of(result["paged_decode"], batch=r["batch"], context=r["context"], **shape)
        assert own["us"] <= 1.15 * r["us"]
    for r in fa3["paged_prefill_fa3"]:
        own = of(result["paged_prefill"], batch=r["batch"], queries=r["length"], past=0, **shape)
        assert own["us"] <= 1.15 * r["us"]


def test_tables_show_a_share_of_both_ceilings(result: dict[str, Any]) -> None:
    fa3 = json.loads((FOLDER / "operators-h100.json").read_text())
    rows = table.decode_rows(result, fa3["paged_decode_fa3"])
    line = next(r for r in rows if r[0] == "64 x 8192")
    own = of(result["paged_decode"], batch=64, context=8192, heads=32, head_size=128, block_size=16, kv_dtype="bf16")
    assert line[4] == f"{100 * own['kv_GBps'] / 3350:.0f} %"
    text = table.markdown(["a", "b"], [["x", "1"]])
    assert text == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_tables_on_the_page_follow_from_the_measurements() -> None:
    page = (FOLDER.parents[1] / "docs" / "kernels.md").read_text(encoding="utf-8")
    missing = [line for text in table.tables(FOLDER) for line in text.splitlines() if line not in page]
    assert missing == []


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(CalibrationError, match="schema is None"):
        table.load_result(path)
    with pytest.raises(CalibrationError, match="not a harness file"):
        table.load_result(tmp_path / "absent.json")
