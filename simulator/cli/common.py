"""What the commands share: options, where output goes, how a scenario is found."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.config import shown
from simulator.errors import ConfigError, ServecastError
from simulator.planning.news import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.scenario.spec import Scenario
    from simulator.workload.trace import Trace, TraceMeta

SetOption = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="Override a scenario key, e.g. policy.max_num_seqs=64; repeatable.")]
OutOption = Annotated[Path | None, typer.Option(
    "--out", "-o", metavar="DIR", help="Write results into this folder, whole or not at all.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No table, no progress bar, no notes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

ColumnOption = Annotated[list[str] | None, typer.Option(
    "--column", metavar="PART=NAME", help="Which column is which: arrival, prompt, output, ...; repeatable.")]
TraceOption = Annotated[Path | None, typer.Option(
    "--trace", metavar="FILE", help="Replay this trace instead of the file's workload.")]
DropOption = Annotated[bool, typer.Option(
    "--drop-bad-rows", help="Leave out and count trace rows that cannot be used, instead of refusing the file.")]
WhereOption = Annotated[list[str] | None, typer.Option(
    "--where", metavar="COLUMN=TEXT", help="Only trace rows whose column holds this text; repeatable.")]
AllowOption = Annotated[bool, typer.Option(
    "--allow-code", help="Run the Python file that the scenario names as its policy (policy.file).")]
UnitOption = Annotated[str | None, typer.Option("--time-unit", help="Unit of the arrivals: s, ms, us, ns or iso.")]

MARKS: Final = {"sweep": ("axes",), "plan": ("candidates", "deployments"), "whatif": ("overlays",)}
"""Command -> top-level keys that only its YAML files have; without any of them a file is a scenario, for `run`."""

PIPE_WIDTH: Final = 4096
"""Columns of plain output: nothing is wrapped or cut when piped."""


def console(stderr: bool = False) -> "Console":
    """A rich console: coloured on a terminal, plain and uncut when piped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=PIPE_WIDTH, color_system=None, soft_wrap=True)


def show(*renderables: Any) -> None:
    """Print tables and text: boxes on a terminal, plain columns when piped."""
    from rich.table import Table

    out = console()
    for item in renderables:
        if isinstance(item, Table) and not out.is_terminal:
            item.box, item.title_justify = None, "left"
        if out.is_terminal:
            out.print(item)
        else:
            print_plain(out, item)


def print_plain(out: "Console", item: Any) -> None:
    """Print without the blanks that pad a line to the console's width."""
    with out.capture() as text:
        out.print(item)
    sys.stdout.write("\n".join(line.rstrip() for line in text.get().splitlines()) + "\n")


def print_json(data: Any) -> None:
    """JSON on stdout, keys in their own order, no NaN."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def check_out(out: Path | None) -> None:
    """Refuse an output folder that is not ours before time is spent on the simulation. Raises ConfigError."""
    if out is not None:
        from simulator.report.folder import check_target

        check_target(out)


def deliver(data: Mapping[str, Any], out: Path | None, tables: Callable[[Any], Iterable[Any]], as_json: bool,
            quiet: bool, said: str = "") -> None:
    """An answer on stdout, as JSON or as the `tables` of it; on stderr what is `said` of it and where its report is.

    Raises typer.Exit(130) after it where Ctrl-C stopped the work before its end.
    """
    if as_json:
        print_json(data)
    elif not quiet:
        show(*tables(data))
    if said:
        note(said, quiet)
    if out is not None:
        note(f"report in {out / 'report.html'}", quiet)
    if data.get("stopped") == INTERRUPTED:
        raise typer.Exit(130)


def note(text: str, quiet: bool = False) -> None:
    """One line on stderr beside the result."""
    if not quiet:
        print(text, file=sys.stderr)


def note_traces(metas: Iterable["TraceMeta"], quiet: bool) -> None:
    """One line on stderr a trace that lost rows, or says what is not simulated."""
    for line in dict.fromkeys(f"{meta.source}: {meta.account}" for meta in metas if meta.notable):
        note(line, quiet)


def find_scenario(name: str) -> Path:
    """A file as given; else a shipped scenario by name (`chat`, `chat.yaml`, `scenarios/chat.yaml`)."""
    path = Path(name)
    if path.exists():
        return path
    from scenarios import ROOT

    inside = str(path.parent) in (".", "scenarios", "questions", "scenarios/questions") and path.suffix in ("", ".yaml")
    places = (ROOT / f"{path.stem}.yaml", ROOT / "questions" / f"{path.stem}.yaml")
    return next((shipped for shipped in places if inside and shipped.is_file()), path)


def command_of(path: Path) -> str:
    """The command that takes this YAML file, told by its top-level keys."""
    from simulator.reading import ReadError, read_text

    try:
        text = read_text(path)
    except ReadError:
        return "run"
    keys = set(re.findall(r"^(\w+)\s*:", text, re.MULTILINE))
    return next((command for command, marks in MARKS.items() if keys.intersection(marks)), "run")


def _known(name: str, path: Path) -> None:
    """Raises ConfigError for a name that is neither a file nor shipped."""
    from scenarios import ROOT

    if not path.exists():
        shipped = ", ".join(sorted(file.stem for file in ROOT.glob("*.yaml") if command_of(file) == "run"))
        raise ConfigError(f"{name}: No such file; accepted: a scenario's YAML file or a shipped name: {shipped}")


def _other_command(name: str, path: Path) -> str | None:
    """The command line for a file that was made for another command than `run`."""
    command = command_of(path)
    call = f"whatif SCENARIO {name}" if command == "whatif" else f"{command} {name}"
    wrong = f"{name}: a file for servecast {command}, not a scenario; try: servecast {call}"
    return wrong if command != "run" else None


def column_pairs(pairs: Sequence[str], option: str = "--column", example: str = "arrival=timestamp") -> dict[str, str]:
    """`arrival=ts` -> {"arrival": "ts"}. Raises ConfigError."""
    for pair in pairs:
        if not all(pair.partition("=")):
            what = "PART=NAME" if option == "--column" else "COLUMN=TEXT"
            raise ConfigError(f"{option} {shown(pair)[1:-1]}: must read {what}, e.g. {example}")
    return dict(pair.split("=", 1) for pair in pairs)


@dataclass(frozen=True)
class TraceChoice:
    """A trace file given on the command line (from the working directory) and how it is read."""

    file: Path | None = None
    columns: Sequence[str] | None = None
    time_unit: str | None = None
    drop_bad: bool = False
    where: Sequence[str] | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """Keys of workload.trace that are set."""
        options = {"columns": column_pairs(self.columns or ()) or None, "time_unit": self.time_unit,
                   "where": column_pairs(self.where or (), "--where", "result=1") or None,
                   "bad_rows": "drop" if self.drop_bad else None}
        return {key: value for key, value in options.items() if value is not None}

    def assignments(self, path: Path) -> tuple[list[str], list[str]]:
        """`key=value` assignments for the YAML file at `path`: those before the user's own, those after.

        The file replaces the workload's file, or a workload that is none.
        """
        before, after = _trace_assignments(path, self.file) if self.file else ([], [])
        return before, after + [f"workload.trace.{key}={json.dumps(value)}" for key, value in self.reading.items()]

    def explained(self, error: ConfigError) -> ConfigError:
        """The error, or that options were given without a trace to read."""
        lost = self.reading and self.file is None and "exactly one of trace" in str(error)
        return ConfigError("--column, --time-unit, --drop-bad-rows, --where: there is no trace to read; "
                           "accepted with --trace FILE") if lost else error


def read_scenario(name: str, assignments: Sequence[str] = (), flags: Mapping[str, Any] | None = None,
                  trace: TraceChoice | None = None, allow_code: bool = False) -> "Scenario":
    """Scenario file, overridden by `--set` assignments, overridden by explicit flags. Raises ConfigError.

    `flags` maps dotted keys to values, None = not given. `trace` replaces the workload. `allow_code` runs policy.file.
    """
    from simulator.scenario.spec import load_scenario

    path, chosen = find_scenario(name), trace or TraceChoice()
    _known(name, path)
    before, after = chosen.assignments(path)
    after += [f"{key}={json.dumps(value)}" for key, value in (flags or {}).items() if value is not None]
    try:
        return load_scenario(path, [*before, *assignments, *after], allow_code)
    except ConfigError as error:
        raise ConfigError(_other_command(name, path) or str(chosen.explained(error))) from error


def _trace_assignments(path: Path, trace: Path) -> tuple[list[str], list[str]]:
    """Assignments that make `trace` the workload: those before the user's, those after."""
    from simulator.config import Document

    real = (Path(os.path.realpath(file)) for file in (path, trace))
    near = all(Path.cwd() in file.parents for file in real)  # else `..` may lead through links
    place = json.dumps(os.path.relpath(trace, path.parent) if near else str(trace.absolute()))
    workload = Document(path).data.get("workload")
    is_file = isinstance(workload, dict) and "trace" in workload
    whole = [] if is_file else [f"workload={{trace: {{path: {place}}}}}"]
    return whole, [f"workload.trace.path={place}"]


def build_workload(scenario: "Scenario") -> "Trace":
    """The scenario's requests. Raises TraceError, ConfigError."""
    from simulator.workload.build import build_trace
    from simulator.workload.spec import TraceFile

    workload = scenario.parsed_workload()
    place = scenario.place("workload")
    given = place == "--set: workload"
    try:
        if isinstance(workload, TraceFile) and not Path(workload.path).exists():
            accepted = "accepted: a trace file, also by --trace FILE"
            raise ConfigError(f"{workload.path}: no such file (workload.trace.path); {accepted}" if given else
                              f"workload.trace.path: no such file {workload.path!r}; {accepted}")
        return build_trace(workload, scenario.seed, 0, scenario.base)
    except OSError as error:
        raise ConfigError(f"{place}: cannot be read: {error}") from error
    except ServecastError as error:
        # A trace named on the command line speaks for itself.
        own = given and isinstance(workload, TraceFile) and str(error).startswith(workload.path)
        prefix = "" if own else place.removesuffix("workload")
        raise type(error)(f"{prefix}{error}") from error
