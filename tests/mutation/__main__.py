"""Plant each bug of planted.py, beyond.py and fleets.py in a copy of the tree and see whether its tests fail.

    python -m tests.mutation [WORD ...] [--jobs N]

tries the bugs whose name or file holds one of the words, all without any, N at a time (default: the cores there
are). First the same tests must pass without a bug. The compiled engine is run by the interpreter
(simulator/engines/interpreted.py), which spares a minute of compiling a bug; tests that do not pass so are run with
compiled code, from a compile cache of each of the N copies, and so are those of a bug that was not caught. Exit status:
the number of bugs that survived, whose text was not found, or whose tests do not pass without them.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutation.beyond import BUGS as BEYOND
from mutation.bug import Bug
from mutation.fleets import BUGS as FLEETS
from mutation.planted import BUGS

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("simulator", "policies", "hwprofiles", "scenarios", "tests", "calibration", "docs")
SECONDS = 900
"""A run that takes longer hangs, which is noticed too."""
INTERPRETED, COMPILED = "interpreted", "compiled"
Copies = queue.SimpleQueue[Path]


def copy_of_tree(place: Path) -> Path:
    for part in PARTS:
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, place)
    return place


def run_tests(place: Path, tests: tuple[str, ...], engine: str) -> tuple[int, str]:
    """pytest's exit status in a copy (1: a test failed; 124: too long) and its last line."""
    env = os.environ | {"SERVECAST_CACHE": str(place / "cache"), "PYTHONPATH": str(place)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["NUMBA_DISABLE_JIT"] = str(int(engine == INTERPRETED))
    options = ("-x", "--tb=no", "-rf", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--hypothesis-profile=found")
    command = [sys.executable, "-m", "pytest", *options, "-m", "not nightly", *tests]
    try:
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"no end within {SECONDS} s"
    lines = done.stdout.strip().splitlines() or [done.stderr[-200:]]
    failed = [line for line in lines if line.startswith("FAILED")]
    return done.returncode, (failed or lines)[-1][:160]


def imports_itself(place: Path) -> bool:
    """Whether code in the copy imports the copy and not an installed tree."""
    code = "import simulator, policies; print(simulator.__file__, policies.__file__)"
    env = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run([sys.executable, "-c", code], cwd=place, env=env, capture_output=True, text=True, check=True)
    return all(str(path).startswith(str(place)) for path in done.stdout.split())


def plant(bug: Bug, engines: tuple[str, ...], copies: Copies) -> tuple[str, str]:
    """(verdict, pytest's last line) of one bug in a free copy; verdict: caught, SURVIVED, ABSENT or BROKEN."""
    place = copies.get()
    path = place / bug.file
    text = path.read_text(encoding="utf-8")
    try:
        if text.count(bug.old) != 1:
            return "ABSENT", f"{bug.file} holds {bug.old!r} {text.count(bug.old)} times, not once"
        path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        for engine in engines:
            status, line = run_tests(place, bug.tests, engine)
            if status != 0:
                break
    finally:
        path.write_text(text, encoding="utf-8")
        copies.put(place)
    return {0: "SURVIVED", 1: "caught", 124: "caught"}.get(status, "BROKEN"), line


def engines_of(tests: tuple[str, ...], copies: Copies) -> tuple[tuple[str, ...], str]:
    """Engines with which the tests pass in a copy without a bug, the quicker one first, and pytest's last line."""
    place = copies.get()
    try:
        status, line = run_tests(place, tests, INTERPRETED)
        if status == 0:
            return (INTERPRETED, COMPILED), line
        status, line = run_tests(place, tests, COMPILED)
    finally:
        copies.put(place)
    return (COMPILED,) if status == 0 else (), line


def healthy(bugs: list[Bug], copies: Copies, pool: ThreadPoolExecutor) -> dict[tuple[str, ...], tuple[str, ...]]:
    """{tests: engines with which they pass without a bug} of these bugs."""
    each, well = list(dict.fromkeys(bug.tests for bug in bugs)), {}
    for tests, (engines, line) in zip(each, pool.map(partial(engines_of, copies=copies), each), strict=True):
        well[tests] = engines
        print(f"{'passes ' + engines[0] if engines else 'FAILS':20}{' '.join(tests)}: {line}", flush=True)
    return well


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
        well = healthy(bugs, copies, pool)
        verdicts += [("UNTRIED", bug.name) for bug in bugs if not well[bug.tests]]
        sound = [bug for bug in bugs if well[bug.tests]]
        tried = pool.map(partial(plant, copies=copies), sound, [well[bug.tests] for bug in sound])
        for bug, (verdict, line) in zip(sound, tried, strict=True):
            verdicts.append((verdict, bug.name))
            print(f"{verdict:9}{bug.name} [{bug.file}]: {line}", flush=True)
    missed = [name for verdict, name in verdicts if verdict != "caught"]
    print(f"{len(bugs) - len(missed)} of {len(bugs)} caught" + "".join(f"\nnot caught: {name}" for name in missed))
    return min(len(missed), 250)


if __name__ == "__main__":
    sys.exit(main())
