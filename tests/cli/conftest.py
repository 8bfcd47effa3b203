"""A fixture that runs one command line in this process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from simulator.cli.main import main


class Outcome(NamedTuple):
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def servecast(capsys: pytest.CaptureFixture[str]) -> Run:
    """servecast("run", "chat") -> Outcome."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run
