"""`servecast selftest`: the engines against each other and against what must hold, on drawn runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.common import JsonOption, QuietOption, note, print_json
from simulator.errors import ServecastError
from simulator.text import several
from simulator.version import schema_of

if TYPE_CHECKING:
    from simulator.selftest.soak import Finding, Soaked

MinutesOption = Annotated[float, typer.Option("--minutes", min=0.01, max=100_000, help="How long to draw runs.")]
CasesOption = Annotated[int | None, typer.Option("--cases", min=1, max=10**12, help="End after so many runs.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**62, help="The first seed; the next ones follow.")]
JobsOption = Annotated[int, typer.Option("--jobs", "-j", min=1, max=1024, help="Processes.")]
ReplayOption = Annotated[Path | None, typer.Option("--replay", metavar="FILE",
                                                   help="Run the YAML of a failure again, nothing else.")]


def register(app: typer.Typer) -> None:
    """Add `selftest`."""
    app.command("selftest")(selftest)


def selftest(minutes: MinutesOption = 1.0, cases: CasesOption = None, seed: SeedOption = 0, jobs: JobsOption = 1,
             replay: ReplayOption = None, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Draw small runs over all features; compare the engines and check docs/invariants.md in each.

    Every run goes through the compiled engine twice, stepping and leaping, each tenth through SimPy too. What
    fails is made small and printed as YAML, for --replay. Exit code 1 when anything failed.
    """
    if replay is not None:
        _replay(replay)
        return
    from policies.registry import POLICIES
    from simulator.engine_choice import announce
    from simulator.selftest.soak import soak

    def told(so_far: "Soaked") -> None:
        if sys.stderr.isatty() and not quiet:
            print(f"\r{several(so_far.compiled, 'run')}, {len(so_far.findings)} failed", end="", file=sys.stderr)

    announce(POLICIES.values())
    done = soak(seed, cases, minutes * 60, jobs, told)
    if sys.stderr.isatty() and not quiet:
        print(file=sys.stderr)
    if not done.compiled and not done.findings:
        if done.stopped:
            raise done.stopped
        raise ServecastError(f"no run ended within {minutes:g} minutes: the engines are still being compiled; "
                             "accepted: a larger --minutes")
    if as_json:
        print_json({"schema": schema_of("selftest"), "compiled": done.compiled, "simpy": done.simpy,
                    "seconds": round(done.seconds, 1), "seed": seed,
                    "findings": [vars(each) for each in done.findings]})
    else:
        for each in done.findings:
            _print(each)
        print(f"{done.compiled:,} drawn runs from seed {seed} in {done.seconds:.0f} s, {done.simpy:,} of them on SimPy "
              f"too: {len(done.findings) or 'nothing'} failed")
    if done.stopped:
        raise done.stopped
    if done.findings:
        raise typer.Exit(1)


def _print(found: "Finding") -> None:
    print(f"# seed {found.seed} fails: {'; '.join(found.faults)[:1000]}\n{found.text}")


def _replay(path: Path) -> None:
    from simulator.selftest.file import load_case
    from simulator.selftest.trial import faults

    wrong = faults(load_case(path))
    for each in wrong:
        print(each)
    if wrong:
        raise typer.Exit(1)
    note(f"{path}: engines agree, all invariants hold")
