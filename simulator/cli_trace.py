"""`servecast trace inspect`: what a trace file looks like, before it is replayed."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simulator.cli_common import JsonOption, print_json, show
from simulator.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add `trace`."""
    group = typer.Typer(name="trace", help="Look at trace files.", no_args_is_help=True)
    group.callback()(lambda: None)
    group.command("inspect")(inspect)
    app.add_typer(group)


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, JSON or JSONL (.gz too), or parquet.")],
    layout: Annotated[str, typer.Option("--format", help="azure, burstgpt, mooncake, vllm_bench, ...")] = "auto",
    columns: Annotated[list[str] | None, typer.Option(
        "--column", metavar="PART=NAME", help="Which column is which: arrival, prompt, output, ...")] = None,
    time_unit: Annotated[str | None, typer.Option("--time-unit", help="s, ms, us, ns or iso.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort by arrival (stably) instead of refusing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many requests.")] = None,
    max_model_len: Annotated[int | None, typer.Option(
        "--max-model-len", min=2, help="Count the requests longer than this.")] = None,
    drop: Annotated[bool, typer.Option("--drop-bad-rows", help="Leave out and count rows that cannot be used.")]
    = False,
    as_json: JsonOption = False,
) -> None:
    """Rates, burstiness, length percentiles, and what was left out and why."""
    from simulator.workload.inspect import inspect_table, inspect_trace
    from simulator.workload.load import load_trace

    bad: Literal["error", "drop"] = "drop" if drop else "error"
    trace = load_trace(file, layout, _columns(columns or []), time_unit, sort, limit, bad_rows=bad)
    facts = inspect_trace(trace, max_model_len)
    if as_json:
        print_json(facts)
    else:
        show(inspect_table(facts))


def _columns(pairs: list[str]) -> dict[str, str] | None:
    """`arrival=ts` -> {"arrival": "ts"}; None when nothing is given."""
    for pair in pairs:
        if not all(pair.partition("=")):
            raise ConfigError(f"--column {pair}: must read PART=NAME, e.g. arrival=timestamp")
    return dict(pair.split("=", 1) for pair in pairs) or None
