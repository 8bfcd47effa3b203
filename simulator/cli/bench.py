"""`servecast bench`: how fast simulations are on this machine."""

import os
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.common import JsonOption, note, print_json, show
from simulator.version import schema_of

TraceOption = Annotated[Path | None, typer.Option(
    "--trace", metavar="FILE", help="Azure conversation trace to draw lengths from; else the one below "
    "SERVECAST_DATA, else a lognormal fit of its quantiles.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="A twentieth of the requests, none beyond 10^6.")]
OnlyOption = Annotated[list[str] | None, typer.Option("--only", metavar="NAME",
                                                      help="Only this case; repeatable.")]

AZURE_FILE = "AzureLLMInferenceTrace_conv.csv"


def register(app: typer.Typer) -> None:
    """Add `bench`."""
    app.command("bench")(bench)


def bench(as_json: JsonOption = False, quick: QuickOption = False, trace: TraceOption = None,
          only: OnlyOption = None) -> None:
    """Time the engine (chat-like load, a fleet, each feature), a 1,000-point grid and the quick start."""
    from simulator.bench.bench import bench_table, run_bench

    file = trace or shared_trace()
    rows = run_bench(only, quick, file, lambda row: note(f"{row['name']}: {row['seconds']} s", as_json))
    if as_json:
        print_json({"schema": schema_of("bench"), "cases": rows})
        return
    show(bench_table(rows))
    for source in dict.fromkeys(row["lengths"] for row in rows):
        note(f"lengths: {source}")


def shared_trace() -> Path | None:
    """The Azure file in the folder that SERVECAST_DATA names, None where there is none."""
    data = os.environ.get("SERVECAST_DATA")
    found = sorted(Path(data).rglob(AZURE_FILE)) if data else []
    return found[0] if found else None
