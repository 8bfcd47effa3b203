"""`servecast plan`, `whatif` and `ui`: from traffic and service levels to a fleet."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    find_scenario,
    note_traces,
    read_scenario,
)
from simulator.cli.progress import news_of
from simulator.errors import ConfigError
from simulator.text import several

if TYPE_CHECKING:
    from simulator.planning.deployments import Deployments
    from simulator.planning.plan import Plan
    from simulator.planning.spec import PlanSpec

JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: one per core).")]
CacheOption = Annotated[
    bool,
    typer.Option(
        "--cache/--no-cache",
        help="Keep simulated points between runs; a changed plan re-runs only what changed.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `plan`, `whatif` and `ui`."""
    app.command("plan")(plan_command)
    app.command("whatif")(whatif_command)
    app.command("ui")(ui_command)


def plan_command(
    file: Annotated[str, typer.Argument(metavar="PLAN", help="YAML file (docs/planning.md).")],
    assignments: SetOption = None,
    out: OutOption = None,
    trace: TraceOption = None,
    columns: ColumnOption = None,
    time_unit: UnitOption = None,
    drop: DropOption = False,
    where: WhereOption = None,
    jobs: JobsOption = None,
    cache: CacheOption = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the fleet: no headroom, bottleneck, growth, curves.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the cheapest fleet that meets the service levels: how many GPUs, at what cost, how near the wall."""
    from simulator.planning.cache import default_folder
    from simulator.planning.deployments import Deployments, placed_in_file, read_plan
    from simulator.planning.plan import plan

    path, chosen = find_scenario(file), TraceChoice(trace, columns, time_unit, drop, where)
    before, after = chosen.assignments(path)
    try:
        spec = read_plan(path, [*before, *(assignments or ()), *after])
    except ConfigError as error:
        raise chosen.explained(error) from error
    check_out(out)
    try:
        if isinstance(spec, Deployments):
            _together(spec, out, jobs, cache, quick, as_json, quiet)
            return
        if spec.budget is not None:
            _spend(spec, out, jobs, cache, quick, as_json, quiet)
            return
        with news_of("planning", quiet) as news:
            found = plan(spec, jobs=jobs, cache=default_folder() if cache else None, explain=not quick, progress=news)
    except ConfigError as error:
        raise placed_in_file(path, [*before, *(assignments or ()), *after], error) from error
    _tell(found, out, as_json, quiet)
    if found.best is None:
        raise typer.Exit(3)


def _together(
    asked: "Deployments", out: Path | None, jobs: int | None, cache: bool, quick: bool, as_json: bool, quiet: bool
) -> None:
    """A plan of several deployments: what all of them need, or how a budget is shared out among them."""
    from simulator.planning.cache import default_folder
    from simulator.planning.joint import plan_each
    from simulator.planning.split import share_out
    from simulator.report.plan.joint import joint_tables, write_joint
    from simulator.report.plan.joint_data import joint_data, shared_data

    folder = default_folder() if cache else None
    with news_of("planning", quiet) as progress:
        if asked.budget is None:
            data = joint_data(plan_each(asked, jobs=jobs, cache=folder, explain=not quick, progress=progress))
        else:
            data = shared_data(share_out(asked, jobs=jobs, cache=folder, explain=not quick, progress=progress))
    note_traces([row["trace"] for row in data["deployments"] if "trace" in row], quiet)
    if out is not None:
        write_joint(data, out)
    deliver(data, out, joint_tables, as_json, quiet, _effort(data))
    if not data["feasible"]:
        raise typer.Exit(3)


def _spend(
    spec: "PlanSpec", out: Path | None, jobs: int | None, cache: bool, quick: bool, as_json: bool, quiet: bool
) -> None:
    """A plan with a budget: what it buys."""
    from simulator.planning.budget import spend
    from simulator.planning.cache import default_folder
    from simulator.report.plan.budget import budget_tables, write_budget
    from simulator.report.plan.data import export_of

    with news_of("planning", quiet) as progress:
        data = spend(spec, jobs=jobs, cache=default_folder() if cache else None, explain=not quick, progress=progress,
                     export=export_of)
    note_traces([data["trace"]], quiet)
    if out is not None:
        write_budget(data, out)
    deliver(data, out, budget_tables, as_json, quiet, _effort(data))
    if data["best"] is None:
        raise typer.Exit(3)


def _effort(data: Mapping[str, Any]) -> str:
    """What was simulated for an answer; points that an earlier one has kept are not counted."""
    if not data["simulated"]:
        return "0 points simulated (those of earlier answers are kept; --no-cache simulates them again)"
    return f"{several(data['simulated'], 'point')} simulated ({several(data['requests'], 'request')})"


def _tell(found: "Plan", out: Path | None, as_json: bool, quiet: bool) -> None:
    from simulator.report.plan.data import plain
    from simulator.report.plan.words import plan_tables

    data = plain(found)
    note_traces([found.trace.meta.facts], quiet)
    if out is not None:
        from simulator.report.plan.page import write_plan

        write_plan(data, out)
    said = (f"{several(found.simulated, 'point')} simulated ({several(found.requests, 'request')}), "
            f"{found.reused} reused")
    deliver(data, out, plan_tables, as_json, quiet, said)


def whatif_command(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Scenario YAML.")],
    overlays: Annotated[str, typer.Argument(metavar="WHATIF", help="YAML of named overlays.")],
    assignments: SetOption = None,
    out: OutOption = None,
    trace: TraceOption = None,
    columns: ColumnOption = None,
    time_unit: UnitOption = None,
    drop: DropOption = False,
    where: WhereOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare a scenario with named changes of it: a table of differences with intervals."""
    from simulator.config import Document
    from simulator.planning.whatif import asked_for, compare
    from simulator.report.plan.whatif import whatif_tables, write_whatif

    chosen = TraceChoice(trace, columns, time_unit, drop, where)
    asked = asked_for(read_scenario(base, assignments or (), None, chosen), Document(find_scenario(overlays)))
    check_out(out)
    with news_of("what if", quiet) as progress:
        data = compare(asked, jobs=jobs, progress=progress)
    note_traces([data["trace"]], quiet)
    if out is not None:
        write_whatif(data, out)
    deliver(data, out, whatif_tables, as_json, quiet)


def ui_command(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="Plan or scenario YAML to start from.")] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on this computer.")] = 8765,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """A local page with sliders for traffic, limits, GPU, policy and replicas; this computer only."""
    from simulator.ui.server import serve

    serve(None if file is None else find_scenario(file), port, open_browser)
