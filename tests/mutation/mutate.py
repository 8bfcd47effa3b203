"""Plant each bug of planted.py in a copy of the tree and see whether the tests named for it fail.

    python tests/mutation/mutate.py [WORD ...] [--jobs N]

tries the bugs whose name or file holds one of the words, all without any. Every copy has its own compile cache.
First the same tests must pass without a bug. Exit status: the number of bugs that survived or whose text was not found.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from planted import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("simulator", "policies", "hwprofiles", "scenarios", "tests", "calibration/measurements")
SECONDS = 300
"""A run that takes longer hangs, which is noticed too."""


def copy_of_tree(place: Path) -> Path:
    for part in PARTS:
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


def run_tests(place: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """pytest's exit status in a copy (1: a test failed; 124: too long) and its last line."""
    env = os.environ | {"SERVECAST_CACHE": str(place / "cache"), "PYTHONPATH": str(place)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ("-x", "--tb=no", "-rf", "-p", "no:cacheprovider", "--hypothesis-seed=0")
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


def plant(bug: Bug) -> tuple[str, str]:
    """(verdict, pytest's last line) of one bug; verdict: caught, SURVIVED, ABSENT or BROKEN."""
    with tempfile.TemporaryDirectory() as folder:
        place = copy_of_tree(Path(folder))
        path = place / bug.file
        text = path.read_text(encoding="utf-8")
        if text.count(bug.old) != 1:
            return "ABSENT", f"{bug.file} holds {bug.old!r} {text.count(bug.old)} times, not once"
        path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        status, line = run_tests(place, bug.tests)
    return {0: "SURVIVED", 1: "caught", 124: "caught"}.get(status, "BROKEN"), line


def healthy(bugs: list[Bug]) -> bool:
    """Without a bug the same tests pass."""
    with tempfile.TemporaryDirectory() as folder:
        place = copy_of_tree(Path(folder))
        if not imports_itself(place):
            print("the copy is not what Python imports there: run without an installed tree in the way")
            return False
        for tests in dict.fromkeys(bug.tests for bug in bugs):
            status, line = run_tests(place, tests)
            print(f"{'passes' if status == 0 else 'FAILS':9}{' '.join(tests)}: {line}", flush=True)
            if status != 0:
                return False
    return True


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("words", nargs="*")
    options.add_argument("--jobs", type=int, default=1)
    given = options.parse_args()
    bugs = [bug for bug in BUGS if not given.words or any(w in bug.name or w in bug.file for w in given.words)]
    if not healthy(bugs):
        return 255
    missed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for bug, (verdict, line) in zip(bugs, pool.map(plant, bugs), strict=True):
            missed += verdict != "caught"
            print(f"{verdict:9}{bug.name} [{bug.file}]: {line}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} caught")
    return missed


if __name__ == "__main__":
    sys.exit(main())
