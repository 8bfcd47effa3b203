"""Plant each bug of planted.py, beyond.py and fleets.py in a copy of the tree and see whether its tests fail.

    python -m tests.mutation [WORD ...] [--jobs N]

tries the bugs whose name or file holds one of the words, all without any, N at a time (default: the cores there
are). The test that fails must pass without the bug. For bugs in what is compiled, the compiled engine is run by the
interpreter (simulator/engines/interpreted.py), which spares a minute of compiling a bug; those that are not caught so
are tried with compiled code. Each of the N copies has its own compile cache. Exit status: the number of bugs that
survived or whose text was not found.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutation.beyond import BUGS as BEYOND
from mutation.bug import Bug
from mutation.fleets import BUGS as FLEETS
from mutation.planted import BUGS

from simulator.jit import JITABLE_SOURCES

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("simulator", "policies", "hwprofiles", "scenarios", "tests", "calibration", "docs")
SECONDS = 900
"""[s] of computing; a run that takes longer hangs, which is noticed too, unless it is the interpreter's."""
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])
"""
TOO_LONG = -signal.SIGXCPU
INTERPRETED, COMPILED = "interpreted", "compiled"
NO_TESTS = 5
"""pytest's exit status where none was left to run."""
Copies = queue.SimpleQueue[Path]


def copy_of_tree(place: Path) -> Path:
    for part in PARTS:
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, place)
    return place


def run_tests(place: Path, tests: Iterable[str], engine: str) -> tuple[int, str]:
    """pytest's exit status in a copy (1: a test failed) or TOO_LONG, and its last line, or that of what failed."""
    env = os.environ | {"SERVECAST_CACHE": str(place / "cache"), "PYTHONPATH": str(place)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["NUMBA_DISABLE_JIT"] = str(int(engine == INTERPRETED))
    options = ("-x", "--tb=no", "-rf", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--hypothesis-profile=found")
    pytest = [sys.executable, "-m", "pytest", *options, "-m", "not nightly", *tests]
    command = [sys.executable, "-c", LIMITED, str(SECONDS), *pytest]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    if done.returncode == TOO_LONG:
        return TOO_LONG, f"no end within {SECONDS} s of computing"
    lines = done.stdout.strip().splitlines() or [done.stderr[-200:]]
    failed = [line for line in lines if line.startswith("FAILED")]
    return done.returncode, (failed or lines)[-1]


def imports_itself(place: Path) -> bool:
    """Whether code in the copy imports the copy and not an installed tree."""
    code = "import simulator, policies; print(simulator.__file__, policies.__file__)"
    env = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run([sys.executable, "-c", code], cwd=place, env=env, capture_output=True, text=True, check=True)
    return all(str(path).startswith(str(place)) for path in done.stdout.split())


def engines_of(bug: Bug) -> tuple[str, ...]:
    """How its tests run the compiled engine, one after the other until it is caught."""
    in_machine_code = any(Path(bug.file).match(pattern) for pattern in JITABLE_SOURCES)
    return (INTERPRETED, COMPILED) if in_machine_code else (COMPILED,)


@contextmanager
def planted(bug: Bug, place: Path) -> Iterator[None]:
    """The bug is in the copy meanwhile."""
    path = place / bug.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def verdict_of(bug: Bug, engine: str, place: Path, sound: dict[tuple[str, str], bool]) -> tuple[str, str]:
    """(caught, SURVIVED or BROKEN, pytest's last line) in a copy; `sound` remembers which tests pass without a bug."""
    ill: list[str] = []
    while True:
        with planted(bug, place):
            status, line = run_tests(place, (*bug.tests, *(f"--deselect={test}" for test in ill)), engine)
        if status != 1:
            late = "caught" if engine == COMPILED else "SURVIVED"
            return {0: "SURVIVED", NO_TESTS: "SURVIVED", TOO_LONG: late}.get(status, "BROKEN"), line
        test = line.removeprefix("FAILED ").split(" - ")[0]
        if (test, engine) not in sound:
            sound[test, engine] = run_tests(place, [test], engine)[0] == 0
        if sound[test, engine]:
            return "caught", line
        ill.append(test)


def try_out(bug: Bug, copies: Copies, sound: dict[tuple[str, str], bool]) -> tuple[str, str]:
    """(verdict, pytest's last line) of one bug in a free copy; verdict: caught, SURVIVED, ABSENT or BROKEN."""
    place = copies.get()
    try:
        found = (place / bug.file).read_text(encoding="utf-8").count(bug.old)
        if found != 1:
            return "ABSENT", f"{bug.file} holds {bug.old!r} {found} times, not once"
        for engine in engines_of(bug):
            verdict, line = verdict_of(bug, engine, place, sound)
            if verdict == "caught":
                break
    finally:
        copies.put(place)
    return verdict, line[:160]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("words", nargs="*")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = options.parse_args()
    bugs = [bug for bug in (*BEYOND, *FLEETS, *BUGS)
            if not given.words or any(word in bug.name or word in bug.file for word in given.words)]
    verdicts: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        copies: Copies = queue.SimpleQueue()
        for k in range(given.jobs):
            copies.put(copy_of_tree(Path(folder) / str(k)))
        place = copies.get()
        copies.put(place)
        if not imports_itself(place):
            print("the copy is not what Python imports there: run without an installed tree in the way")
            return 255
        tried = pool.map(partial(try_out, copies=copies, sound={}), bugs)
        for bug, (verdict, line) in zip(bugs, tried, strict=True):
            verdicts.append((verdict, bug.name))
            print(f"{verdict:9}{bug.name} [{bug.file}]: {line}", flush=True)
    missed = [name for verdict, name in verdicts if verdict != "caught"]
    print(f"{len(bugs) - len(missed)} of {len(bugs)} caught" + "".join(f"\nnot caught: {name}" for name in missed))
    return min(len(missed), 250)


if __name__ == "__main__":
    sys.exit(main())
