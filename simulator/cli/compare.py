"""`servecast compare`: scenarios, or one under several policies, side by side on the same requests."""

from collections import Counter
from collections.abc import Sequence
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
    note,
    note_traces,
    print_json,
    read_scenario,
    show,
)
from simulator.cli.run import (
    EngineName,
    EngineOption,
    LogOption,
    PngOption,
    ReportOption,
    SeedOption,
    simulate_scenario,
    wants_log,
)
from simulator.errors import ConfigError, UnknownNameError
from simulator.text import times

if TYPE_CHECKING:
    from rich.table import Table

    from simulator.run import Result
    from simulator.scenario.spec import Scenario

Summary = dict[str, Any]

PoliciesOption = Annotated[str | None, typer.Option(
    "--policies", metavar="A,B,...", help="Run every scenario under each of these; the first is the base.")]


def register(app: typer.Typer) -> None:
    """Add `compare`."""
    app.command("compare")(compare)


ScenariosArgument = Annotated[list[str], typer.Argument(
    metavar="SCENARIO...", help="YAML files or shipped names.")]


def compare(scenarios: ScenariosArgument,
            policies: PoliciesOption = None, assignments: SetOption = None, out: OutOption = None,
            trace: TraceOption = None, columns: ColumnOption = None, time_unit: UnitOption = None,
            drop: DropOption = False, where: WhereOption = None,
            engine: EngineOption = EngineName.auto, report: ReportOption = True, png: PngOption = False,
            log: LogOption = None,
            seed: SeedOption = None, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Run scenarios side by side; ratios are against the first. All see the same arrivals and lengths."""
    chosen = TraceChoice(trace, columns, time_unit, drop, where)
    read = [read_scenario(name, assignments or (), {"seed": seed}, chosen) for name in scenarios]
    names = policy_names(policies)
    stems = [Path(name).stem for name in scenarios]
    cases = under_policies(read, names, quiet) if names else distinct(read, stems)
    check_out(out)
    results = [simulate_scenario(case, engine, wants_log(log, report, out), quiet) for case in cases]
    note_traces([result.trace.meta.facts for result in results], quiet)
    if out is not None:
        from simulator.report.write import write_comparison

        write_comparison(results, out, report=report, plot_format="png" if png else "svg")
    if as_json:
        print_json([result.summary for result in results])
    elif not quiet:
        print_comparison(results, [scenario.name for scenario in read], len(names))
    if out is not None:
        note(f"results in {out}{'; open ' + str(out / 'report.html') if report else ''}", quiet)


def policy_names(given: str | None) -> list[str]:
    """`a,b` -> ["a", "b"]. Raises ConfigError naming the known ones for a name that is unknown or given twice."""
    from policies.registry import POLICIES

    names = [part.strip() for part in given.split(",")] if given is not None else []
    for name in names:
        if name not in POLICIES:
            raise UnknownNameError("policy", name, POLICIES, "--policies")
        if names.count(name) > 1:
            raise ConfigError(f"--policies: {name} given twice; known: {', '.join(POLICIES)}")
    return names


def print_comparison(results: Sequence["Result"], scenarios: Sequence[str], policies: int) -> None:
    """All cases side by side; several scenarios under several policies as one table of gains."""
    from simulator.report.tables import compare_table

    if len(scenarios) > 1 and policies > 1:
        summaries = [result.summary for result in results]
        show(gain_table(scenarios, [summaries[k : k + policies] for k in range(0, len(summaries), policies)]))
    else:
        show(compare_table(results))


def under_policies(scenarios: Sequence["Scenario"], names: Sequence[str], quiet: bool) -> list["Scenario"]:
    """Each scenario under each policy, named for both (or for the policy, when there is one scenario)."""
    cases = []
    for scenario in scenarios:
        for name in names:
            case, dropped = with_policy(scenario, name)
            label = name if len(scenarios) == 1 else f"{scenario.name}: {name}"
            cases.append(case.updated({"name": label}))
            if dropped:
                note(f"{label}: {', '.join(dropped)} left out: {name} has none such, or means another by it", quiet)
    return cases


def with_policy(scenario: "Scenario", name: str) -> tuple["Scenario", list[str]]:
    """The scenario under another policy, and the knobs left out because that policy has none such.

    A token budget is left out too when only one of the two chunks prompts: to the other it is a limit on their length.
    """
    from policies.registry import POLICIES, policy_named

    policy = policy_named(name)
    before = POLICIES.get(scenario.policy.name or "chunked")
    known = set(policy.knobs)
    if before is not None and before.whole_prompt != policy.whole_prompt:
        known.discard("max_num_batched_tokens")
    given = scenario.policy.model_dump(exclude={"name"}, exclude_none=True)
    kept = {knob: value for knob, value in given.items() if knob in known}
    return scenario.updated({"policy": {"name": name, **kept}}), [knob for knob in given if knob not in known]


def distinct(scenarios: Sequence["Scenario"], stems: Sequence[str]) -> list["Scenario"]:
    """Scenarios with names that differ: those that share one are called by their file.

    Raises ConfigError when one file is given twice.
    """
    shared = {name for name, count in Counter(each.name for each in scenarios).items() if count > 1}
    named = [each.updated({"name": stem}) if each.name in shared else each
             for each, stem in zip(scenarios, stems, strict=True)]
    for name, count in Counter(each.name for each in named).items():
        if count > 1:
            raise ConfigError(f"compare: {name} given {count} times; accepted: different ones, or --policies")
    return named


def gain_table(scenarios: Sequence[str], groups: Sequence[Sequence[Summary]]) -> "Table":
    """One row a scenario and policy after the first: what it gains over the first policy."""
    from rich.table import Table

    base = groups[0][0]["scenario"]["policy"]["name"]
    table = Table(title=f"Gain over {base}: throughput up, latency down")
    for column in ("scenario", "policy", "output tokens/s", "gain", "E2E p95", "shorter by", "slot use"):
        table.add_column(column, justify="left" if column in ("scenario", "policy") else "right")
    for name, (first, *others) in zip(scenarios, groups, strict=True):
        for other in others:
            table.add_row(name, *_gain_row(first, other))
    return table


def _gain_row(first: Summary, other: Summary) -> list[str]:
    tokens = [each["throughput"]["output_tokens_per_s"] for each in (first, other)]
    late = [each["e2e_s"]["p95"] for each in (first, other)]
    use = [each["slot_utilization"] for each in (first, other)]
    return [other["scenario"]["policy"]["name"], _change(tokens, ",.0f"), _ratio(tokens[1], tokens[0]),
            _change(late, ",.3g") + " s", _ratio(late[0], late[1]), _change(use, ".0%")]


def _change(values: Sequence[float | None], form: str) -> str:
    return " -> ".join("-" if value is None else format(value, form) for value in values)


def _ratio(value: float | None, base: float | None) -> str:
    return times(value / base) if value is not None and base else "-"
