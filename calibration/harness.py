"""Build the CUDA microbenchmarks, run them on this machine's GPU and collect one JSON file.

Entry point: `run_harness(out)`; from a shell `python -m calibration.harness OUT.json [--quick] [--sanitize]`.
It needs nvcc and an NVIDIA GPU; cuBLASLt and NCCL are used where found. Every program prints JSON lines, each
naming the table it belongs to; the result file holds one list a table. Nothing is written unless all programs
end well, and the file appears in one step. Clocks and other card settings are read, never changed.

Units are in the key names: `us` (median microseconds), `us_p10`, `us_p90`, `kv_GBps`, `GBps`, `TFLOPs` (10^12
operations a second, a multiply-add counting two), `bytes`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from calibration.clocks import ClockSampler
from calibration.toolchain import Toolchain, find_toolchain
from simulator.atomic import atomic
from simulator.errors import CalibrationError, UnknownNameError

SCHEMA = "servecast-ops/1"
KERNELS = Path(__file__).resolve().parent / "kernels"
PROGRAMS = ("memory", "decode", "prefill", "gemm", "layer", "collective")
CHECK_LIMIT_S = 300
RUN_LIMIT_S = 900

Row = dict[str, Any]
Tables = dict[str, list[Row]]

_DEVICE_QUERY = {
    "name": "name",
    "driver": "driver_version",
    "memory_MiB": "memory.total",
    "sm_clock_MHz": "clocks.sm",
    "memory_clock_MHz": "clocks.mem",
    "sm_clock_max_MHz": "clocks.max.sm",
    "memory_clock_max_MHz": "clocks.max.mem",
    "power_W": "power.draw",
    "power_limit_W": "power.limit",
    "temperature_C": "temperature.gpu",
}


def run_harness(out: Path, quick: bool = False, sanitize: bool = False, only: Sequence[str] = PROGRAMS) -> Path:
    """Measure this machine and write `out` (JSON, schema `servecast-ops/1`); return its path.

    `quick` measures a few points of each table; `sanitize` also runs every correctness check under
    compute-sanitizer; `only` names the programs to run. Raises CalibrationError without nvcc or GPU, on an
    unknown program, on a failed build, check or run.
    """
    out = Path(out)
    for name in only:
        if name not in PROGRAMS:
            raise UnknownNameError("benchmark program", name, PROGRAMS)
    tools = find_toolchain()
    before = query_devices(tools)
    with tempfile.TemporaryDirectory(prefix="servecast-kernels-") as folder:
        programs = build(tools, Path(folder), only)
        tables = check_programs(tools, programs)
        if sanitize:
            tables["sanitizer"] = sanitize_programs(tools, programs)
        for name in programs:
            with ClockSampler(tools.nvidia_smi, name) as clocks:
                _merge(tables, run_program(name, command(tools, programs, name, quick), RUN_LIMIT_S))
            tables.setdefault("clocks_under_load", []).append(clocks.row())
        _merge(tables, run_libraries(tools, quick))
    result = assemble(tools, (before, query_devices(tools)), tables, quick, list(programs))
    problems = schema_problems(result)
    if problems:
        raise CalibrationError(f"{out}: not written: " + "; ".join(problems[:5]))
    write_atomically(out, json.dumps(result, indent=1) + "\n")
    return out


def build(tools: Toolchain, folder: Path, only: Sequence[str] = PROGRAMS) -> dict[str, Path]:
    """Compile the programs named for the GPU found, in parallel; return program name -> binary.

    `gemm` is left out where no cuBLASLt header and library were found.
    """
    names = [n for n in only if n != "gemm" or (tools.cublaslt_header and tools.cublaslt)]

    def compile_one(name: str) -> Path:
        binary = folder / name
        argv = [str(tools.nvcc), "-O3", "-std=c++17", tools.target_flag(), "-o", str(binary)]
        if name == "gemm":
            argv.append(f"-I{tools.cublaslt_header}")
        done = subprocess.run([*argv, str(KERNELS / f"{name}.cu")], capture_output=True, text=True)
        if done.returncode:
            raise CalibrationError(f"{name}.cu: nvcc failed: {_last_lines(done.stderr or done.stdout)}")
        return binary

    with ThreadPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(compile_one, names), strict=True))


def command(tools: Toolchain, programs: dict[str, Path], name: str, quick: bool, check: bool = False) -> list[str]:
    """Argument vector of one program, with the libraries it opens at run time."""
    argv = [str(programs[name])]
    if name == "gemm":
        argv += ["--cublaslt", str(tools.cublaslt)]
    if name == "collective" and tools.nccl:
        argv += ["--nccl", str(tools.nccl)]
    return argv + ["--quick"] * quick + ["--check"] * check


def check_programs(tools: Toolchain, programs: dict[str, Path]) -> Tables:
    """Run every program's correctness checks; a failed one ends the harness."""
    tables: Tables = {}
    for name in programs:
        _merge(tables, run_program(name, command(tools, programs, name, False, check=True), CHECK_LIMIT_S))
    return tables


def sanitize_programs(tools: Toolchain, programs: dict[str, Path]) -> list[Row]:
    """Run the small checks under compute-sanitizer; one row a (program, tool) with its number of errors.

    GEMM is left out: its kernels are the vendor library's.
    """
    if tools.sanitizer is None:
        raise CalibrationError("compute-sanitizer: not found on PATH or beside nvcc; run without sanitize")
    rows: list[Row] = []
    for name in [n for n in programs if n != "gemm"]:
        for tool in ("memcheck", "racecheck"):
            argv = [str(tools.sanitizer), "--tool", tool, "--error-exitcode", "99"]
            argv += [*command(tools, programs, name, False, check=True), "--tiny"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_LIMIT_S)
            text = done.stdout + done.stderr
            summary = next((x for x in text.splitlines()[::-1] if "SUMMARY" in x), "no summary")
            verdict = {"exit_status": done.returncode, "summary": summary.strip("= ")}
            rows.append({"program": name, "tool": tool, **verdict})
    return rows


def run_program(name: str, argv: list[str], limit_s: float) -> Tables:
    """Run one program and sort its output lines into tables. Raises CalibrationError on any failure."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise CalibrationError(f"{name}: no end after {limit_s:.0f} s") from None
    if done.returncode:
        raise CalibrationError(f"{name}: exit status {done.returncode}: {_last_lines(done.stderr)}")
    return parse_rows(name, done.stdout)


def run_libraries(tools: Toolchain, quick: bool) -> Tables:
    """Time torch, flash-attn and FlashInfer beside our kernels, where the interpreter can import them."""
    argv = [sys.executable, str(Path(__file__).with_name("libraries.py"))] + ["--quick"] * quick
    return run_program("libraries", argv, RUN_LIMIT_S)


def parse_rows(name: str, text: str) -> Tables:
    """JSON lines -> {table: rows}. Raises CalibrationError naming the program and the line."""
    tables: Tables = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            table = row.pop("table")
        except (ValueError, AttributeError, KeyError, TypeError):
            raise CalibrationError(f"{name}: output line {number} is not a row: {line[:80]!r}") from None
        tables.setdefault(table, []).append(row)
    return tables


def query_devices(tools: Toolchain) -> list[Row]:
    """Name, driver, memory, clocks, power and temperature of every GPU (read only)."""
    query = f"--query-gpu={','.join(_DEVICE_QUERY.values())}"
    argv = [str(tools.nvidia_smi), query, "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        raise CalibrationError(f"nvidia-smi: no GPU answers: {_last_lines(done.stdout + done.stderr)}")
    return [parse_device(line) for line in done.stdout.strip().splitlines()]


def parse_device(line: str) -> Row:
    """One line of nvidia-smi's CSV -> named values; what the driver does not report is None."""
    values = [v.strip() for v in line.split(",")]
    if len(values) != len(_DEVICE_QUERY):
        raise CalibrationError(f"nvidia-smi: {len(values)} values, expected {len(_DEVICE_QUERY)}: {line!r}")
    row: Row = dict(zip(_DEVICE_QUERY, values, strict=True))
    for key in row:
        if key not in ("name", "driver"):
            try:
                row[key] = float(row[key])
            except ValueError:
                row[key] = None
    return row


def assemble(
    tools: Toolchain, devices: tuple[list[Row], list[Row]], tables: Tables, quick: bool, programs: list[str]
) -> Row:
    """The result document: device (queried before and after) and versions first, then one list a table."""
    before, after = devices
    versions: Row = {"nvcc": tools.nvcc_version, "python": platform.python_version()}
    for row in tables.pop("versions", []):
        versions.update(row)
    return {
        "schema": SCHEMA,
        "quick": quick,
        "programs": programs,
        "device": before[0]["name"],
        "gpus": len(before),
        "devices_before": before,
        "devices_after": after,
        "versions": versions,
        "method": "median of at least 20 samples, each a CUDA-graph replay timed with events unless a row "
        "says otherwise; inputs larger than the L2 cache in rotation, random data",
        **dict(sorted(tables.items())),
    }


def schema_problems(result: Row) -> list[str]:
    """What is wrong with a result document; an empty list when nothing is."""
    problems = [f"missing {k}" for k in ("schema", "device", "versions", "checks") if not result.get(k)]
    if result.get("schema") != SCHEMA:
        problems.append(f"schema is {result.get('schema')!r}, accepted: {SCHEMA!r}")
    for name, rows in result.items():
        if not isinstance(rows, list) or name == "programs" or name.startswith("devices_"):
            continue
        problems += [f"{name}[{i}]: {p}" for i, row in enumerate(rows) for p in _row_problems(row)]
    failed = [r for r in result.get("checks", []) if not r.get("passed")]
    problems += [f"check failed: {r.get('kernel')} {r.get('case')}" for r in failed]
    return problems


def _row_problems(row: Row) -> list[str]:
    if "us" not in row:
        return []
    values = [row.get(k) for k in ("us_p10", "us", "us_p90")]
    if not all(isinstance(v, int | float) and v > 0 for v in values):
        return [f"times must be > 0, got {values}"]
    ordered = values == sorted(values)  # type: ignore[type-var]
    few = [] if row.get("samples", 0) >= 20 else [f"samples must be >= 20, got {row.get('samples')}"]
    return few + ([] if ordered else [f"percentiles out of order: {values}"])


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target, then rename: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def _merge(into: Tables, more: Tables) -> None:
    for table, rows in more.items():
        into.setdefault(table, []).extend(rows)


def _last_lines(text: str, count: int = 4) -> str:
    return " | ".join(text.strip().splitlines()[-count:]) or "no message"


def main(argv: list[str] | None = None) -> int:
    """Command line of this module; errors go to stderr as one line."""
    parser = argparse.ArgumentParser(description="measure this machine's GPU")
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few points of each table")
    parser.add_argument("--sanitize", action="store_true", help="also run the checks under compute-sanitizer")
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="run this program (repeatable)")
    args = parser.parse_args(argv)
    try:
        print(run_harness(args.out, args.quick, args.sanitize, args.only or PROGRAMS))
    except CalibrationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
