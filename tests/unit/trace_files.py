"""Trace files for tests of the readers, and the message with which one is refused."""

from pathlib import Path

import pytest

from simulator.errors import TraceError
from simulator.workload import load_trace

GOOD = "arrival_s,prompt_tokens,output_tokens\n0.5,10,3\n1.25,20,4\n2.0,30,5\n"


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    """A file with that content."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def failure(path: Path, **options: object) -> str:
    """The message of the TraceError that reading it raises."""
    with pytest.raises(TraceError) as caught:
        load_trace(path, **options)  # type: ignore[arg-type]
    return str(caught.value)
