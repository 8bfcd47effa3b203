"""How long until the first answer: wall and processor time of whole commands, against the imports that none can spare.

The yardstick is a fresh interpreter that imports numba, pandas and matplotlib's pyplot, run in turn with the
commands, so that a slow or busy machine slows both. Of each the fastest of ROUNDS counts.
"""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from simulator.bench.case import row
from simulator.errors import ServecastError

IMPORTS: Final = "import numba, pandas, matplotlib.pyplot"
CASES: Final = {"first_imports": 1.0, "first_cold": 5.0, "first_warm": 2.5, "first_no_report": 1.5, "first_page": 5.0}
"""Case -> most that it may take, as a multiple of the imports. Cold: nothing compiled yet."""
ROUNDS: Final = 3
LONGEST_S: Final = 120.0
Seconds = tuple[float, float]
"""(wall, processor) [s]."""


def first_answers() -> Iterator[dict[str, Any]]:
    """One row a case; `ratio_to_imports` is of wall time, `cpu_ratio_to_imports` of user and system time."""
    with tempfile.TemporaryDirectory(prefix="servecast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        warm = folder / "warm"
        _command(warm, folder, [], "wait")
        best: dict[str, Seconds] = {}
        for number in range(ROUNDS):
            for case, timed in _cases(warm, folder / f"cold-{number}", folder).items():
                wall, cpu = timed()
                before = best.get(case, (wall, cpu))
                best[case] = (min(wall, before[0]), min(cpu, before[1]))
    base = best["first_imports"]
    for case, (wall, cpu) in best.items():
        requests = 1 if case == "first_imports" else 2_000
        yield row(case, "chunked", 1, requests, wall, lengths="lognormal") | {
            "cpu_seconds": round(cpu, 4), "ratio_to_imports": round(wall / base[0], 2),
            "cpu_ratio_to_imports": round(cpu / base[1], 2), "most": CASES[case]}


def _cases(warm: Path, cold: Path, folder: Path) -> dict[str, Callable[[], Seconds]]:
    return {
        "first_imports": lambda: _timed([sys.executable, "-c", IMPORTS], dict(os.environ)),
        "first_cold": lambda: _cold(cold, folder),
        "first_warm": lambda: _command(warm, folder, [], "wait"),
        "first_no_report": lambda: _command(warm, folder, ["--no-report"], "wait"),
        "first_page": lambda: _page(folder / f"{cold.name}-page"),
    }


def _command(cache: Path, folder: Path, extra: list[str], mode: str) -> Seconds:
    """`servecast run chat --out`."""
    command = [sys.executable, "-m", "simulator.cli.main", "run", "chat", "--quiet", "--out", str(folder / "out")]
    return _timed([*command, *extra], _environment(cache, mode))


def _cold(cache: Path, folder: Path) -> Seconds:
    """The first run, then wait for what it has started: the next case shall not share the machine with it."""
    taken = _command(cache, folder, [], "background")
    end = time.monotonic() + LONGEST_S
    while not list(cache.rglob("engine-*.code")) or list(cache.rglob("engine-*.log")):
        if time.monotonic() > end:
            raise ServecastError(f"the compiled engine is not there {LONGEST_S:.0f} s after the first run")
        time.sleep(0.2)
    return taken


def _environment(cache: Path, mode: str) -> dict[str, str]:
    return {**os.environ, "SERVECAST_CACHE": str(cache), "SERVECAST_COMPILE": mode,
            "PYTHONPATH": os.pathsep.join(sys.path)}


def _timed(command: list[str], environment: dict[str, str]) -> Seconds:
    before, start = _children_cpu(), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode:
        raise ServecastError(f"{' '.join(command[1:5])} failed: {done.stderr.strip()}")
    return wall, _children_cpu() - before


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _page(cache: Path) -> Seconds:
    """`servecast ui` from its start to the first page served."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "simulator.cli.main", "ui", "--no-open", "--port", str(port)]
    before, start = _children_cpu(), time.perf_counter()
    server = subprocess.Popen(command, env=_environment(cache, "off"), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        while not _answers(port):
            if server.poll() is not None:
                raise ServecastError("servecast ui ended at once; it needs pip install 'servecast[ui]'")
            if time.perf_counter() - start > LONGEST_S:
                raise ServecastError(f"servecast ui does not answer within {LONGEST_S:.0f} s")
            time.sleep(0.05)
        wall = time.perf_counter() - start
    finally:
        server.kill()
        server.wait()
    return wall, _children_cpu() - before


def _answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as reply:
        return bool(reply.status == 200)
    return False
