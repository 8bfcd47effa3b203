"""`servecast load` and `capacity`: a load test in one go, and the highest rate that meets service levels."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simulator.cli.common import (
    ColumnOption,
    DropOption,
    JsonOption,
    OutOption,
    QuietOption,
    SetOption,
    TraceChoice,
    TraceOption,
    UnitOption,
    WhereOption,
    check_out,
    deliver,
    note_traces,
    read_scenario,
)
from simulator.cli.progress import news_of, progress_bar
from simulator.cli.run import PngOption, ScenarioArgument, SeedOption
from simulator.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add `load` and `capacity`."""
    app.command("load")(load)
    app.command("capacity")(capacity)


RatesOption = Annotated[str | None, typer.Option(
    "--rates", metavar="1,2,4,...", help="Requests per second to offer; default: up to a full engine.")]
ConcurrencyOption = Annotated[str | None, typer.Option(
    "--concurrency", metavar="1,8,...", help="Clients at a time instead of rates; auto: powers of two.")]
ReplicationsOption = Annotated[int, typer.Option(
    "--replications", min=1, max=100, help="Runs a point, with other random numbers.")]
MeasuredOption = Annotated[list[Path] | None, typer.Option(
    "--measured", metavar="FILE", help="Measured results beside the curve: JSON of vllm bench serve, "
    "sglang.bench_serving or AIPerf, or a folder of measured runs; repeatable.")]
SloOption = Annotated[list[str] | None, typer.Option(
    "--slo", metavar="LEVEL", help='e.g. "p99 ttft < 500 ms" or "95 % ttft < 1 s, e2e < 30 s"; repeatable. Default: '
    "99 % of the requests within the scenario's slo.")]
GrowthOption = Annotated[list[float] | None, typer.Option(
    "--growth", metavar="PCT", min=0.01, max=1000, help="Growth of the traffic in % a month, for the step table.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Only the rate: no bottleneck, no step table.")]


def load(scenario: ScenarioArgument, rates: RatesOption = None, concurrency: ConcurrencyOption = None,
         replications: ReplicationsOption = 3, measured: MeasuredOption = None, assignments: SetOption = None,
         out: OutOption = None, trace: TraceOption = None, columns: ColumnOption = None, time_unit: UnitOption = None,
         drop: DropOption = False, where: WhereOption = None, png: PngOption = False, seed: SeedOption = None,
         as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Run a scenario at several rates or concurrencies: the table and curve that benchmarks of servers give."""
    from simulator.planning.load import load_curve
    from simulator.report.load.words import load_tables

    if rates is not None and concurrency is not None:
        raise ConfigError("--rates and --concurrency: accepted is one of the two")
    axis: Literal["rate", "concurrency"] = "concurrency" if concurrency is not None else "rate"
    values = _numbers("--rates", rates) if axis == "rate" else _numbers("--concurrency", concurrency)
    read = read_scenario(scenario, assignments or (), {"seed": seed},
                         TraceChoice(trace, columns, time_unit, drop, where))
    check_out(out)
    points = _measured(measured or [])
    with progress_bar(f"{read.name}: load test", max(1, len(values) or 8) * replications, quiet) as advance:
        data = load_curve(read, axis, values, replications=replications, progress=advance)
    note_traces([data["trace"]], quiet)
    data = {**data, "measured": points}
    if out is not None:
        from simulator.report.load.page import write_load

        write_load(data, out, png)
    deliver(data, out, load_tables, as_json, quiet)


def _numbers(option: str, text: str | None) -> list[float]:
    """`1,2,4` -> [1.0, 2.0, 4.0]; nothing, or auto, -> []. Raises ConfigError."""
    if text is None or text.strip() == "auto":
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: must be numbers with commas between, e.g. 1,2,4,8") from None


def _measured(paths: list[Path]) -> list[dict[str, object]]:
    if not paths:
        return []
    from calibration.bench_points import measured_points

    return measured_points(paths)


def capacity(scenario: ScenarioArgument, slo: SloOption = None, growth: GrowthOption = None, quick: QuickOption = False,
             assignments: SetOption = None, out: OutOption = None, trace: TraceOption = None,
             columns: ColumnOption = None, time_unit: UnitOption = None, drop: DropOption = False,
             where: WhereOption = None, seed: SeedOption = None, as_json: JsonOption = False,
             quiet: QuietOption = False) -> None:
    """Find the highest rate that meets service levels, what breaks first above it, and when growth gets there."""
    from simulator.planning.capacity import capacity as search
    from simulator.planning.capacity import levels_of
    from simulator.planning.slo_words import slo_of_words
    from simulator.report.load.words import capacity_tables

    read = read_scenario(scenario, assignments or (), {"seed": seed},
                         TraceChoice(trace, columns, time_unit, drop, where))
    levels = levels_of(read, slo_of_words(slo) if slo else None)
    check_out(out)
    with news_of("capacity", quiet) as progress:
        data = search(read, levels, growth=growth or (), explain=not quick, progress=progress)
    note_traces([data["trace"]], quiet)
    if out is not None:
        from simulator.report.load.page import write_capacity

        write_capacity(data, out)
    deliver(data, out, capacity_tables, as_json, quiet)
    if data["rate"] is None:
        raise typer.Exit(3)
