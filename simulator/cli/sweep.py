"""`servecast sweep`: run a scenario at many points; `servecast sweep show`: the best ones and a heat map."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from simulator.cli.common import JsonOption, QuietOption, find_scenario, note, print_json, show
from simulator.cli.progress import progress_bar
from simulator.text import several, verb

if TYPE_CHECKING:
    from simulator.sweep.sweep import SweepOutcome


class _DefaultRun(TyperGroup):
    """`sweep FILE ...` is `sweep run FILE ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front unless a subcommand or help is asked for."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add `sweep` with its subcommands."""
    group = typer.Typer(cls=_DefaultRun, help="Run a scenario at many points. "
                        "`servecast sweep FILE --out DIR` is short for `servecast sweep run FILE --out DIR`.")
    group.command("run")(sweep)
    group.command("show")(show_sweep)
    app.add_typer(group, name="sweep")


SpecArgument = Annotated[Path, typer.Argument(metavar="SWEEP", help="YAML: base, axes, replications.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, max=1024,
                                                help="Local processes; default: the cores there are.")]
DaskOption = Annotated[str | None, typer.Option("--dask", metavar="ADDR",
                                                help="Run on a Dask cluster, e.g. tcp://scheduler:8786.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with what DIR holds, repeating nothing.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What `servecast sweep` wrote.")]
MetricOption = Annotated[str, typer.Option("--metric", "-m", help="Summary key to rank by.")]
KeysOption = Annotated[str | None, typer.Option(
    "--keys", metavar="X,Y", help="Two swept keys for the heat map; default: a swept rate and the first other.")]
TopOption = Annotated[int, typer.Option("--top", min=1, help="Points to list.")]
PlotOption = Annotated[Path | None, typer.Option(
    "--plot", metavar="PNG", help="Where the heat map goes; default DIR/heatmap.png.")]


def sweep(spec: SpecArgument, out: OutOption, jobs: JobsOption = None, dask: DaskOption = None,
          resume: ResumeOption = False, quiet: QuietOption = False) -> None:
    """Run every point of a sweep file; a killed sweep goes on with --resume."""
    from simulator.engine_choice import uncompiled
    from simulator.errors import ConfigError
    from simulator.sweep.spec import load_sweep, sweep_points
    from simulator.sweep.sweep import run_sweep, swept_policies

    if dask and jobs:
        raise ConfigError("--jobs has no effect with --dask: the cluster has its own workers")
    parsed, base = load_sweep(find_scenario(str(spec)))
    rows = len(sweep_points(parsed)) * parsed.replications
    finished = 0
    engines = [] if dask else uncompiled(swept_policies(base, sweep_points(parsed)))
    with progress_bar(parsed.name, rows, quiet, engines=engines) as advance:

        def told(done: int, total: int, failed: int) -> None:
            nonlocal finished
            finished = done
            advance(done)

        try:
            outcome = run_sweep(parsed, base, out, jobs=jobs, dask=dask, resume=resume, progress=told)
        except KeyboardInterrupt:
            note(f"{finished} of {several(rows, 'row')} {verb(finished, 'is', 'are')} done and kept in {out}; go on "
                 f"with --resume, see them with servecast sweep show {out}", quiet)
            raise
    note(f"{_closing_line(outcome)}; see them with servecast sweep show {outcome.folder}", quiet)


def _closing_line(outcome: "SweepOutcome") -> str:
    before = f", {outcome.resumed} of them done before" if outcome.resumed else ""
    failed = f", {outcome.failed} failed (see the column error)" if outcome.failed else ""
    made = f"{several(outcome.points, 'point')}, {several(outcome.rows, 'row')}"
    return f"{made}{before}{failed}; results in {outcome.folder}"


def show_sweep(folder: FolderArgument, metric: MetricOption = "ttft_s.p99", keys: KeysOption = None,
               top: TopOption = 10, plot: PlotOption = None, as_json: JsonOption = False,
               quiet: QuietOption = False) -> None:
    """List the best points, draw a metric over two of the keys, and write both as a page and as sweep.json."""
    from rich.text import Text

    from simulator.sweep import show as table
    from simulator.sweep.data import plain, write_json
    from simulator.sweep.page import answer, write_page

    swept = table.sweep_keys(folder)
    pair = _pair(keys, swept)
    frame = table.load_table(folder)
    means = table.point_means(frame, swept, metric)
    said = table.unfinished(folder, frame)
    if not as_json:
        show(*(Text(line) for line in [*answer(means, swept, metric), *said]))
        show(table.best_table(table.best_points(means, metric, top), swept, metric))
    failed = table.errors_table(frame)
    if failed is not None:
        show(failed, stderr=True)
    figure = grid = None
    folded: list[str] = []
    if pair is not None and keys is None and not table.fits(means, *pair):
        note(f"no heat map: {pair[0]} and {pair[1]} have too many values; --keys X,Y names others", quiet)
    elif pair is not None:
        grid, folded = table.grid_of(means, pair[0], pair[1], metric), table.folded_keys(means, *pair)
        if grid.shape[1] <= 16 and grid.shape[0] <= 40 and not as_json:
            show(table.grid_table(grid, metric, folded))
        path = plot or folder / "heatmap.png"
        figure = table.heat_map(grid, metric, folded)
        table.save_heat_map(figure, path)
        note(f"heat map in {path}", quiet)
    page, name = folder / "report.html", table.sweep_name(folder)
    write_page(page, name, frame, means, swept, metric, figure, max(top, 20), said, table.trust_of(folder))
    data = plain(name, frame, means, swept, metric, grid, folded, max(top, 20), said)
    write_json(folder / "sweep.json", data)
    if as_json:
        print_json(data)
    note(f"open {page}", quiet)


def _pair(keys: str | None, swept: list[str]) -> tuple[str, str] | None:
    """The two keys to draw, None when fewer are swept."""
    from simulator.errors import ConfigError
    from simulator.sweep.show import heat_keys

    if keys is None:
        return heat_keys(swept)
    names = [key.strip() for key in keys.split(",")]
    if len(names) != 2 or not set(names) <= set(swept):
        raise ConfigError(f"--keys {keys}: must name two swept keys, X,Y; swept: {', '.join(swept)}")
    return names[0], names[1]
