"""Commands that do not fit anything work where the extra with scipy is not installed."""

import subprocess
import sys

import pytest

BLOCKED = "import sys; sys.modules['scipy'] = None; from simulator.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("command", [["validate", "nowhere"], ["calibrate", "engine", "nowhere"]])
def test_no_traceback_without_scipy(command: list[str]) -> None:
    """The folder that is not there is what is wrong, said in one line."""
    done = subprocess.run([sys.executable, "-c", BLOCKED, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "nowhere" in done.stderr or "scipy" in done.stderr
