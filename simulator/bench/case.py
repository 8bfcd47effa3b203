"""One benchmark case, measured in a process of its own so that its peak memory is its own.

Timed is the engine call alone: columns in, columns out, ITL histogram on, step log off, machine code compiled
and cached before. The best of `repeats` runs counts; each run starts from fresh columns.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.bench.eager import eager_loop
from simulator.bench.work import Lengths, bare_loop, chat_lengths, chat_scenario, chat_trace
from simulator.engines.fast import run_fast
from simulator.scenario.job import build_job
from simulator.scenario.setup import Setup, prepare
from simulator.workload.store import open_columns, save_columns
from simulator.workload.trace import Trace

WARM_REQUESTS = 2_000


@dataclass(frozen=True)
class Case:
    """`rate` [requests/s] over all replicas; `mapped`: columns come from memory-mapped files."""

    name: str
    requests: int
    rate: float
    policy: str = "chunked"
    replicas: int = 1
    slots: int = 128
    repeats: int = 3
    mapped: bool = False


def measure(case: Case, trace_file: Path | None) -> dict[str, Any]:
    """Run one case in this process and return its row."""
    lengths = chat_lengths(trace_file)
    setup = prepare(chat_scenario(case.policy, case.replicas, case.slots))
    _warm(setup, lengths)
    if case.mapped:
        with tempfile.TemporaryDirectory(prefix="servecast-bench-") as folder:
            save_in_child(case, trace_file, folder)
            return _row(case, setup, open_columns(folder), lengths)
    return _row(case, setup, chat_trace(lengths, case.requests, case.rate), lengths)


def _row(case: Case, setup: Setup, trace: Trace, lengths: Lengths) -> dict[str, Any]:
    seconds = cpu = bare = eager = float("inf")
    peak = 0.0
    for _ in range(case.repeats):
        job = build_job(setup, trace, True, False)
        wall, busy = timed(run_fast, job, setup.policy)
        seconds, cpu = min(seconds, wall), min(cpu, busy)
        steps, tokens = int(job.stats["steps"].sum()), int(job.stats["output"].sum())
        del job
        peak = peak or peak_mb()  # before the loops take memory of their own
        bare = min(bare, timed(bare_loop, trace.arrival_ns, trace.prompt, trace.output)[1])
        if case.policy == "chunked":
            eager = min(eager, timed(_eager, case, setup, trace)[1])
    return row(case.name, case.policy, case.replicas, case.requests, seconds, steps, tokens, cpu / bare,
               peak, lengths.source, cpu / eager if case.policy == "chunked" else None)


def row(name: str, policy: str | None, replicas: int, requests: int, seconds: float, steps: int | None = None,
        tokens: int | None = None, ratio: float | None = None, peak: float | None = None,
        lengths: str = "", to_eager: float | None = None) -> dict[str, Any]:
    """A line of `servecast bench --json`; None = not measured in this case."""
    return {"name": name, "policy": policy, "replicas": replicas, "requests": requests,
            "seconds": round(seconds, 4), "requests_per_s": round(requests / seconds),
            "steps_per_s": None if steps is None else round(steps / seconds),
            "tokens_per_s": None if tokens is None else round(tokens / seconds),
            "ratio_to_bare_loop": None if ratio is None else round(ratio, 2),
            "ratio_to_eager_loop": None if to_eager is None else round(to_eager, 3),
            "peak_mb": None if peak is None else round(peak, 1), "lengths": lengths}


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """[s] of wall clock and of this process's CPU that a call takes."""
    wall, busy = time.perf_counter(), time.process_time()
    call(*arguments)
    return time.perf_counter() - wall, time.process_time() - busy


def _eager(case: Case, setup: Setup, trace: Trace) -> None:
    """The eager loop on the same requests, dealt to the replicas in turn."""
    for r in range(case.replicas):
        own = slice(r, None, case.replicas)
        eager_loop(trace.arrival_ns[own], trace.prompt[own], trace.output[own], setup.limits, setup.cost)


def _warm(setup: Setup, lengths: Lengths) -> None:
    trace = chat_trace(lengths, WARM_REQUESTS, 10.0 * setup.scenario.cluster.replicas)
    run_fast(build_job(setup, trace, True, False), setup.policy)
    bare_loop(trace.arrival_ns, trace.prompt, trace.output)
    eager_loop(trace.arrival_ns, trace.prompt, trace.output, setup.limits, setup.cost)


def save_in_child(case: Case, trace_file: Path | None, folder: str) -> None:
    """Make the mapped columns in another process: making them must not count as memory of the run."""
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(target=_save, args=(case, trace_file, folder))
    child.start()
    child.join()
    if child.exitcode:
        raise OSError(f"the trace columns could not be written to {folder}")


def _save(case: Case, trace_file: Path | None, folder: str) -> None:
    save_columns(chat_trace(chat_lengths(trace_file), case.requests, case.rate), folder)


def peak_mb() -> float:
    """[MB] most memory this process ever held at once, mapped file pages included."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
