"""Workloads: trace files and generators, all ending in one `Trace`.

Reading order: `trace` (the columns), `load` (files), `spec` and `build` (scenario section -> Trace),
`inspect`. Names are resolved on first use, so `import simulator.workload` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arrivals import Arrivals, sample_arrivals
    from .build import build_trace
    from .generate import ClassSpec, Generated, generate_trace
    from .inspect import inspect_table, inspect_trace
    from .lengths import Lengths, sample_lengths
    from .load import load_trace
    from .spec import Inline, TraceFile, parse_workload
    from .store import open_columns, save_columns
    from .streams import stream
    from .trace import Trace, TraceMeta, make_trace
    from .transform import cap_output, superpose

_HOME = {
    "Arrivals": "arrivals",
    "ClassSpec": "generate",
    "Generated": "generate",
    "Inline": "spec",
    "Lengths": "lengths",
    "Trace": "trace",
    "TraceFile": "spec",
    "TraceMeta": "trace",
    "build_trace": "build",
    "cap_output": "transform",
    "generate_trace": "generate",
    "inspect_table": "inspect",
    "inspect_trace": "inspect",
    "load_trace": "load",
    "make_trace": "trace",
    "open_columns": "store",
    "parse_workload": "spec",
    "sample_arrivals": "arrivals",
    "sample_lengths": "lengths",
    "save_columns": "store",
    "stream": "streams",
    "superpose": "transform",
}

__all__ = [
    "Arrivals",
    "ClassSpec",
    "Generated",
    "Inline",
    "Lengths",
    "Trace",
    "TraceFile",
    "TraceMeta",
    "build_trace",
    "cap_output",
    "generate_trace",
    "inspect_table",
    "inspect_trace",
    "load_trace",
    "make_trace",
    "open_columns",
    "parse_workload",
    "sample_arrivals",
    "sample_lengths",
    "save_columns",
    "stream",
    "superpose",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
