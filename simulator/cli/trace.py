"""`servecast trace inspect`: what a trace file looks like, before it is replayed."""

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.common import (
    ColumnOption,
    DropOption,
    JsonOption,
    TraceChoice,
    UnitOption,
    WhereOption,
    print_json,
    show,
)


def register(app: typer.Typer) -> None:
    """Add `trace`."""
    group = typer.Typer(name="trace", help="Look at trace files.")
    group.callback()(lambda: None)
    group.command("inspect")(inspect)
    app.add_typer(group)


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="CSV, JSON, JSONL or parquet.")]
FormatOption = Annotated[str, typer.Option("--format", help="azure, burstgpt, mooncake, vllm_bench, ...")]
SortOption = Annotated[bool, typer.Option("--sort", help="Sort by arrival, stably, instead of refusing.")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many requests.")]
LongestOption = Annotated[int | None, typer.Option(
    "--max-model-len", min=2, help="Count the requests longer than this.")]


def inspect(file: FileArgument, layout: FormatOption = "auto", columns: ColumnOption = None,
            time_unit: UnitOption = None, sort: SortOption = False, limit: LimitOption = None,
            max_model_len: LongestOption = None, drop: DropOption = False, where: WhereOption = None,
            as_json: JsonOption = False) -> None:
    """Rates, burstiness, length percentiles, and what was left out and why."""
    from simulator.workload.inspect import inspect_table, inspect_trace
    from simulator.workload.load import load_trace

    reading = TraceChoice(file, columns, time_unit, drop, where).reading
    trace = load_trace(file, layout, sort=sort, limit=limit, **reading)
    facts = inspect_trace(trace, max_model_len)
    if as_json:
        print_json(facts)
    else:
        show(inspect_table(facts))
