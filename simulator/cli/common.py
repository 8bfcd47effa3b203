"""What the commands share: options, where output goes, how a scenario is found."""

import json
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.config import shown
from simulator.errors import ConfigError, ServecastError
from simulator.planning.news import INTERRUPTED
from simulator.text import glued, unglued

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.scenario.spec import Scenario
    from simulator.workload.trace import Trace

SetOption = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="Override a scenario key, e.g. policy.max_num_seqs=64; repeatable.")]
OutOption = Annotated[Path | None, typer.Option(
    "--out", "-o", metavar="DIR", help="Write results into this folder, whole or not at all.")]


def _quietened(quiet: bool) -> bool:
    """--quiet leaves out what the program logs on its way too, as that an engine is being compiled."""
    if quiet:
        logging.getLogger("servecast").setLevel(logging.ERROR)
    return quiet


QuietOption = Annotated[bool, typer.Option("--quiet", "-q", callback=_quietened,
                                           help="No table, no progress bar, no notes.")]
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

WIDTH: Final = 100
"""Columns where there is no terminal that says how many: prose wraps there, tables are made to fit."""
_ROOMY: Final = 4096
"""Columns to measure a table in, as if there were room for all of it."""


def width_of(stream: IO[str]) -> int:
    """Columns of the terminal behind a stream; WIDTH where there is none."""
    if not stream.isatty():
        return WIDTH
    return shutil.get_terminal_size((WIDTH, 24)).columns


def wrapped(text: str, width: int) -> str:
    """Lines of at most `width` columns, broken between words; what goes on stands two columns further in.

    A word longer than a line, as a path, stays whole.
    """
    return unglued("\n".join(each for line in glued(text).splitlines() or [""] for each in _folded(line, width)))


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def console(stderr: bool = False) -> "Console":
    """A rich console: coloured on a terminal, plain elsewhere."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=_ROOMY, color_system=None)


def show(*renderables: Any, stderr: bool = False) -> None:
    """Print tables and text: boxes on a terminal, plain columns elsewhere; text wraps at words."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stream = sys.stderr if stderr else sys.stdout
    out, width = console(stderr), width_of(stream)
    for item in renderables:
        if isinstance(item, Group):
            show(*item.renderables, stderr=stderr)
            continue
        if isinstance(item, str):
            item = Text(wrapped(item, width))
        if isinstance(item, Table) and item.title:
            show(Text.from_markup(item.title, style="italic") if isinstance(item.title, str) else item.title,
                 stderr=stderr)  # a title of its own is wrapped at the width of the table
            item.title = None
        if isinstance(item, Table) and not out.is_terminal:
            item.box = None
        if isinstance(item, Text) and not item.no_wrap:
            item.plain = glued(item.plain)
        if out.is_terminal:
            with out.capture() as drawn:
                out.print(item, crop=not getattr(item, "no_wrap", False))
            stream.write(unglued(drawn.get()))
        else:
            _print_plain(out, item, width, stream)


def _print_plain(out: "Console", item: Any, width: int, stream: IO[str]) -> None:
    """Print without the blanks that pad a line. Nothing is cut: a word longer than a line stays whole, and so does a
    text that may not be wrapped, as a command; cells of a table that does not fit are folded."""
    from rich.table import Table

    measured = out.measure(item)
    needed = measured.maximum if getattr(item, "no_wrap", False) else measured.minimum
    if isinstance(item, Table):
        for column in item.columns:
            column.overflow = "fold"
            column.no_wrap = column.no_wrap and needed <= width
    with out.capture() as text:
        out.print(item, width=width if isinstance(item, Table) else max(width, needed))
    stream.write(unglued("\n".join(line.rstrip() for line in text.get().splitlines()) + "\n"))


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
    """A sentence on stderr beside the result."""
    if not quiet:
        print(wrapped(text, width_of(sys.stderr)), file=sys.stderr, flush=True)


class _Notes(logging.Handler):
    """What the program logs, as notes on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        note(record.getMessage())


@contextmanager
def log_as_notes() -> Iterator[None]:
    """What is logged meanwhile stands on stderr like the notes of a command; --quiet counts until the end of it."""
    logger, handler = logging.getLogger("servecast"), _Notes()
    before = logger.level
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def note_traces(traces: Iterable[Mapping[str, Any]], quiet: bool) -> None:
    """One line on stderr a trace (TraceMeta.facts) that lost rows, says what is not simulated or has another rate."""
    for line in dict.fromkeys(f"{trace['source']}: {trace['account']}" for trace in traces if trace["account"]):
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

    if path.exists() and path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".parquet"):
        raise ConfigError(f"{name}: a trace, not a scenario; it takes the place of a scenario's requests with --trace: "
                          f"servecast run chat --trace {name}")
    if not path.exists():
        shipped = sorted(file.stem for file in ROOT.glob("*.yaml") if command_of(file) == "run")
        near = get_close_matches(path.stem, shipped, 3, 0.5)
        raise ConfigError(f"{name}: No such file; accepted: a scenario's YAML file or a shipped name"
                          f"{', such as ' + ', '.join(near) if near else ''} (servecast scenarios lists them)")


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
