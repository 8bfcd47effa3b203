"""`servecast run`: one scenario -> table on screen, results in a folder."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simulator.cli.common import (
    AllowOption,
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
    build_workload,
    check_out,
    note,
    note_traces,
    print_json,
    read_scenario,
    show,
)
from simulator.cli.progress import RUNNING, progress_bar

if TYPE_CHECKING:
    from simulator.run import Result
    from simulator.scenario.spec import Scenario

LOGGED_REQUESTS: Final = 50_000
"""Up to this many requests the step log is kept for the report unless --log or --no-log says otherwise."""


class EngineName(StrEnum):
    """The two engines; their results are equal."""

    auto = "auto"
    fast = "fast"
    reference = "reference"


EngineOption = Annotated[EngineName, typer.Option(
    "--engine", help="fast (compiled), reference (SimPy), or auto: SimPy for a small run while fast is not compiled "
    "yet.")]
ReportOption = Annotated[bool, typer.Option("--report/--no-report", help="Plots and report.html in --out.")]
PngOption = Annotated[bool, typer.Option("--png", help="The files in plots/ as PNG instead of SVG.")]
LogOption = Annotated[bool | None, typer.Option(
    "--log/--no-log", help="Keep the step log; default: with a report, up to 50,000 requests.")]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the random draws.")]
BlocksOption = Annotated[int | None, typer.Option(
    "--num-gpu-blocks", min=2, help="KV blocks as the real engine printed them, instead of the prediction.")]


def register(app: typer.Typer) -> None:
    """Add `run`."""
    app.command("run")(run)


MetricsOption = Annotated[bool, typer.Option("--openmetrics", help="Print OpenMetrics text instead of tables.")]
ScenarioArgument = Annotated[str, typer.Argument(
    metavar="SCENARIO", help="YAML file, or a shipped one by name.")]


def run(scenario: ScenarioArgument,
        assignments: SetOption = None, out: OutOption = None, trace: TraceOption = None,
        columns: ColumnOption = None, time_unit: UnitOption = None, drop: DropOption = False, where: WhereOption = None,
        engine: EngineOption = EngineName.auto, report: ReportOption = True, png: PngOption = False,
        log: LogOption = None, seed: SeedOption = None, num_gpu_blocks: BlocksOption = None,
        allow_code: AllowOption = False,
        as_json: JsonOption = False, metrics: MetricsOption = False, quiet: QuietOption = False) -> None:
    """Replay a scenario and print its latencies, throughput and verdict; with --out also write them."""
    flags = {"seed": seed, "kv.num_gpu_blocks": num_gpu_blocks}
    chosen = read_scenario(scenario, assignments or (), flags, TraceChoice(trace, columns, time_unit, drop, where),
                           allow_code)
    check_out(out)
    result = simulate_scenario(chosen, engine, wants_log(log, report, out), quiet)
    note_traces([result.trace.meta.facts], quiet)
    if out is not None:
        from simulator.report.write import write_result

        write_result(result, out, report=report, plot_format="png" if png else "svg")
    if as_json:
        print_json(result.summary | {"host_sensitivity": result.host_sensitivity} | result.beside_summary)
    elif metrics:
        from simulator.report.openmetrics import openmetrics

        typer.echo(openmetrics(result.summary), nl=False)
    elif not quiet:
        print_result(result)
    if out is not None:
        note(f"results in {out}{'; open ' + str(out / 'report.html') if report else ''}", quiet)


def wants_log(log: bool | None, report: bool, out: Path | None) -> bool | None:
    """--log or --no-log as given; else None (up to LOGGED_REQUESTS) for a report and False without one."""
    return log if log is not None or (report and out is not None) else False


def simulate_scenario(scenario: "Scenario", engine: EngineName, log: bool | None, quiet: bool) -> "Result":
    """Run it, with a progress bar on terminals; `log` None keeps the step log of up to LOGGED_REQUESTS."""
    from simulator.engine_choice import compiled_first
    from simulator.run import simulate
    from simulator.scenario.setup import prepare

    ready = prepare(scenario)
    trace = build_workload(scenario)
    keep = len(trace) <= LOGGED_REQUESTS if log is None else log
    name = scenario.name if scenario.name == ready.policy.name else f"{scenario.name}: {ready.policy.name}"
    first = compiled_first(ready, trace, engine.value)
    with progress_bar(name, len(trace), quiet, RUNNING, [first]) as advance:
        return simulate(scenario, engine.value, trace=trace, setup=ready, log=keep, progress=advance)


def print_result(result: "Result") -> None:
    """The summary table and, on real GPUs, where the memory of one of each pool goes."""
    from simulator.metrics.hosts import host_sentences
    from simulator.metrics.reuse import reuse_sentences
    from simulator.report.facts import fleet_lines
    from simulator.report.tables import summary_table

    show(summary_table(result.summary), *fleet_lines(result.summary), *host_sentences(result.host_sensitivity),
         *reuse_sentences(result.prefix_reuse, result.summary["kv"]["prefix_cache"]["hit_rate"]))
    for name, setup in result.setup.pools.items() or [("", result.setup)]:
        if setup.capacity is not None:
            given = setup.scenario.kv.num_gpu_blocks
            show(*([f"pool {name}:"] if name else []), setup.capacity.text(),
                 *([f"  {given:,} blocks were set in the scenario instead"] if given else []))
