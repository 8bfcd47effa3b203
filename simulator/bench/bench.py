"""`servecast bench`: how fast the engine is on this machine, case by case, against a bare loop.

Absolute figures drift with the machine and its load; the ratios to the bare loop and to a plain eager loop on the same
requests, in CPU time of the same process, drift less.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from simulator.bench.case import Case, measure, peak_mb, row
from simulator.bench.features import FEATURES, REQUESTS, measure_feature
from simulator.bench.first import CASES as FIRST_CASES
from simulator.bench.first import first_answers
from simulator.errors import ServecastError, UnknownNameError

GRID_JOBS: Final = 2
Row = dict[str, Any]

ENGINE_CASES: Final = (
    Case("chat_10rps", 1_000_000, 10.0),
    Case("chat_18rps", 1_000_000, 18.0),
    Case("chat_18rps_512", 1_000_000, 18.0, slots=512),
    Case("fleet_64", 1_000_000, 640.0, replicas=64),
    Case("chat_10rps_vllm_v0", 200_000, 10.0, "vllm_v0"),
    Case("chat_10rps_orca", 200_000, 10.0, "orca"),
    Case("chat_2rps_static", 200_000, 2.0, "static"),
    *(Case(f"growth_1e{k}", 10**k, 10.0, repeats=3 if k < 7 else 1) for k in range(3, 8)),
    Case("mapped_1e7", 10**7, 10.0, repeats=1, mapped=True),
)
FEATURE_CASES: Final = {f"feature_{name}": name for name in FEATURES}
OTHER_CASES: Final = (*FEATURE_CASES, "grid_1000", *FIRST_CASES)
QUICK_SHARE: Final = 20
"""--quick runs a twentieth of the requests and leaves out what is beyond 10^6."""


def case_names() -> list[str]:
    """Every case, in the order in which they run."""
    return [*(case.name for case in ENGINE_CASES), *OTHER_CASES]


def run_bench(only: list[str] | None = None, quick: bool = False, trace: Path | None = None,
              on_row: Callable[[Row], None] | None = None) -> list[Row]:
    """Measure the cases named in `only` (default: all). Raises UnknownNameError for a name that is none."""
    for name in only or ():
        if name not in case_names():
            raise UnknownNameError("benchmark case", name, case_names())
    rows = []
    for line in _measured(only or case_names(), quick, trace):
        rows.append(line)
        if on_row:
            on_row(line)
    return rows


def bench_table(rows: list[Row]) -> Table:
    """The rows for the screen."""
    table = Table(title="servecast bench", title_justify="left")
    columns = ["policy", "replicas", "requests", "seconds", "requests_per_s", "steps_per_s", "tokens_per_s",
               "ratio_to_bare_loop", "ratio_to_eager_loop", "peak_mb"]
    if any("ratio_to_plain" in line for line in rows):
        columns.insert(-1, "ratio_to_plain")
    if any("most" in line for line in rows):
        columns += ["cpu_seconds", "ratio_to_imports", "cpu_ratio_to_imports", "most"]
    table.add_column("name")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for line in rows:
        table.add_row(line["name"], *(_cell(line.get(name)) for name in columns))
    return table


def _measured(names: list[str], quick: bool, trace: Path | None) -> Iterator[Row]:
    for case in ENGINE_CASES:
        if case.name in names and not (quick and case.requests > 10**6):
            yield _alone(measure, _shortened(case) if quick else case, trace)
    for name, feature in FEATURE_CASES.items():
        if name in names:
            yield _alone(measure_feature, feature, REQUESTS // (QUICK_SHARE if quick else 1))
    if "grid_1000" in names:
        yield _alone(grid, 500 if quick else 10_000)
    if any(name in names for name in FIRST_CASES):
        yield from (line for line in first_answers() if line["name"] in names)


def _shortened(case: Case) -> Case:
    fewer = case.requests if case.name.startswith("growth") else case.requests // QUICK_SHARE
    return replace(case, requests=fewer, repeats=1)


def _alone(function: Callable[..., Row], *arguments: Any) -> Row:
    """Call in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def grid(requests: int) -> Row:
    """1,000 points x `requests` requests on GRID_JOBS processes, from a spec to a finished results folder."""
    from simulator.run import simulate
    from simulator.sweep.spec import SweepSpec, base_scenario
    from simulator.sweep.sweep import run_sweep

    spec = SweepSpec.model_validate({
        "name": "grid_1000",
        "base": {"workload": {"arrivals": {"kind": "poisson", "rate": 8, "requests": requests},
                              "prompt": {"kind": "lognormal", "mean": 1150, "cv": 1.0, "max": 8000},
                              "output": {"kind": "lognormal", "mean": 210, "cv": 0.8, "max": 2000}},
                 "model": "llama-3.1-8b", "hardware": "h100-sxm", "engine": "vllm-0.24",
                 "policy": {"name": "chunked"}, "max_model_len": 16384,
                 "slo": {"ttft_s": 0.5, "tpot_s": 0.05}},
        "axes": [{"grid": {"workload.arrivals.rate": {"low": 2, "high": 11, "steps": 10},
                           "policy.max_num_seqs": [32, 48, 64, 96, 128, 160, 192, 224, 256, 512],
                           "policy.max_num_batched_tokens": [512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
                                                             8192, 16384]}}]})
    base = base_scenario(spec)
    simulate(base.updated({"workload.arrivals.requests": 10}))  # leaves compiled code in the disk cache
    with tempfile.TemporaryDirectory(prefix="servecast-bench-") as folder:
        start = time.perf_counter()
        outcome = run_sweep(spec, base, Path(folder) / "out", jobs=GRID_JOBS)
        seconds = time.perf_counter() - start
    if outcome.failed:
        raise ServecastError(f"grid_1000: {outcome.failed} points failed")
    return row("grid_1000", "chunked", 1, outcome.rows * requests, seconds, peak=peak_mb(),
               lengths="lognormal")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
