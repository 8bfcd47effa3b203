"""A load test and a capacity in words and tables; works on the plain data of planning.load and planning.capacity."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from simulator.metrics.apart import CLOSE
from simulator.metrics.stability import FEWEST
from simulator.planning.edge import TIE
from simulator.report.tables import COLOURS
from simulator.report.trusted import short_line
from simulator.text import MISSING, counted, joined, number, seconds, several, share, stopped_lines, verb

Data = Mapping[str, Any]
COLUMNS: Final = (("requests_per_s", "served/s"), ("output_tokens_per_s", "tokens/s"), ("ttft_p50_s", "TTFT p50"),
                  ("ttft_p99_s", "TTFT p99"), ("tpot_p50_s", "TPOT p50"), ("tpot_p99_s", "TPOT p99"),
                  ("e2e_p99_s", "E2E p99"))  # fmt: skip
"""Columns of the table on screen."""
SHORTFALL: Final = 0.97
"""Share of the rate below which what is served of it is explained."""
LEARN: Final = "Your own is measured by servecast calibrate engine (docs/planning.md)."
MORE: Final = (
    f"A verdict takes {FEWEST} of them at least, better some hundred: a longer trace, copies of it side by side (--set "
    "workload.trace.copies=100) or, of generated requests, --set workload.arrivals.requests=2000."
)
MOST_GROWTHS: Final = 5
"""Columns of months that fit a terminal."""

ALIKE: Final = 0.7
"""A larger fleet that was seen over less of the time than this share of the first's is told from it."""


def fleet_text(data: Data) -> str:
    """`4 x h100-sxm`, `1 to 4 x h100-sxm` where it is autoscaled."""
    fewest = f"{data['least_gpus']} to " if "least_gpus" in data else ""
    return f"{fewest}{data['gpus']} x {data['gpu']}"


def a_gpu(row: Data, data: Data) -> float:
    """Output tokens/s of one GPU at a point; of an autoscaled fleet over those it had on average."""
    return float(row["output_tokens_per_s"] / (row.get("mean_gpus") or data["gpus"]))


def offered_text(row: Data) -> str:
    """`8/s` or `8 clients`."""
    return f"{row['rate']:.4g}/s" if "rate" in row else f"{row['concurrency']:.0f}"


def cell_text(name: str, value: float | None) -> str:
    """A number of a row with its unit."""
    return seconds(value) if name.endswith("_s") and not name.endswith("per_s") else number(value)


def load_lines(data: Data) -> list[str]:
    """The answer in a sentence or two."""
    rows, rate = data["points"], data["axis"] == "rate"
    unit = "requests/s" if rate else "clients"
    first_bad = next((row for row in rows if row["verdict"] != "stable"), None)
    if data["carries"] is None and first_bad is not None:
        place = f"{first_bad[data['axis']]:g} {unit}"
        few = all(row["verdict"] == "undecided" for row in rows)
        lines = [f"Undecided from {place} on: too few requests at every point to tell whether the backlog grows. {MORE}"
                 if few else f"Not stable at any point: {first_bad['verdict']} at {place}."]
    else:
        best = next(row for row in rows if row[data["axis"]] == data["carries"])
        lines = [
            f"Stable up to {data['carries']:g} {unit}: {number(best['output_tokens_per_s'])} output tokens/s, "
            f"p99 TTFT {seconds(best['ttft_p99_s'])}, p99 TPOT {seconds(best['tpot_p99_s'])}."
        ]
        if "mean_gpus" in best:
            count = best["mean_gpus"]
            lines.append(f"The autoscaled fleet had {number(count)} {verb(count, 'GPU', 'GPUs')} "
                         "on average there.")
        if first_bad is not None:
            lines.append(f"At {first_bad[data['axis']]:g} {unit} it is {first_bad['verdict']}: {first_bad['reason']}.")
        else:
            lines.append("No point is beyond what it carries; larger ones would show where that ends.")
    lines += [f"{several(len(data['measured']), 'measured point')} beside it."] if data.get("measured") else []
    lines += [short_line(data["trust"])] if data.get("trust") else []
    return lines + stopped_lines(data)


def served_line(data: Data) -> str:
    """Why less is served a second than comes, where all is served; empty where that is not so."""
    short = [row for row in data["points"] if row["verdict"] == "stable" and row.get("rate")
             and row["requests_per_s"] < SHORTFALL * row["rate"]]
    if not short:
        return ""
    row = short[-1]
    return ("served/s and tokens/s are means to the last answer, which comes some time after the last request: "
            f"{number(row['requests_per_s'])}/s of the {row['rate']:g}/s that it keeps up with. A run of more requests "
            "brings the two together.")


def load_tables(data: Data) -> Iterator[Any]:
    """What `servecast load` prints."""
    yield Text(f"{data['name']}: {several(data['requests'], 'request')}, {data['model']} on {fleet_text(data)}, "
               f"{data['policy']}", style="bold")  # fmt: skip
    for line in load_lines(data):
        yield Text(line)
    yield _points(data, "rate" if data["axis"] == "rate" else "clients")
    if line := served_line(data):
        yield Text(line, style="dim")
    if data.get("measured"):
        yield _measured(data)
    if data["replications"] > 1:
        yield Text(f"Means of {data['replications']} replications; load.json has their intervals.", style="dim")


def _points(data: Data, offered: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in (offered, *(label for _, label in COLUMNS)):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in data["points"]:
        cells = [cell_text(name, row[name]) for name, _ in COLUMNS]
        style = COLOURS[row["verdict"]]
        table.add_row(offered_text(row), *cells, Text(row["verdict"], style=style))
    return table


def _measured(data: Data) -> Table:
    table = Table(title="measured", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("offered", justify="right")
    for _, label in COLUMNS:
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for row in data["measured"]:
        offered = offered_text(row) if "rate" in row or "concurrency" in row else MISSING
        table.add_row(offered, *(cell_text(name, row.get(name)) for name, _ in COLUMNS), row["source"])
    return table


def capacity_lines(data: Data) -> list[str]:
    """The answer in plain words, most important first."""
    asked = " and ".join(data["asked"])
    fleet = fleet_text(data) + (f" in {data['replicas']} replicas" if data["replicas"] > 1 and "least_gpus" not in data
                                else "")
    if "mean_replicas" in data:
        fleet += f", autoscaled, {data['mean_replicas']:.3g} replicas on average at that rate,"
    if data["rate"] is None:
        return [f"{fleet} meets this at no rate: {data['breaks']['words']} even at {data['breaks']['rate']:.3g} "
                f"requests/s. Asked: {asked}.", *stopped_lines(data)]  # fmt: skip
    if not data["wall"]:
        return [f"No level breaks up to {data['rate']:.4g} requests/s: there is no wall. Asked: {asked}."]
    high = "more" if data["high"] is None else f"{data['high']:.3g}"
    low = "less" if not data["low"] else f"{data['low']:.3g}"
    lines = [
        f"{fleet} carries {data['rate']:.4g} requests/s ({low} to {high} with the {share(data['step_error'])} error of "
        f"step times) with {asked}.",
        f"Just above, at {data['breaks']['rate']:.4g} requests/s: {data['breaks']['words']} (seen over "
        f"{data['span_s']:,.0f} s of arrivals).",
    ]
    if data["relief"]:
        most = first_relief(data["relief"])
        lines.append(most or "No single resource holds it back: 25 % more of any carries at most 2 % more.")
    own = _growth_lines(data)
    if data["rate"] < data["traffic"]:  # what was not asked, but is not carried, comes before what else there is to say
        lines, own = [lines[0], *own, *lines[1:]], []
    return lines + carried_lines(data["hosts"], data["rate"]) + own + stopped_lines(data)


def carried_lines(hosts: Sequence[Data], carries: float) -> list[str]:
    """What a fleet carries on the other hosts, on its own `carries` [requests/s], where that differs by more than a
    few per cent."""
    others = [row for row in reversed(hosts) if not row["planned"]]
    if not others or all(row["factor"] is not None and 1 / CLOSE < row["factor"] < CLOSE for row in others):
        places = joined([f"the {row['host']}" for row in others]) if others else ""
        return [f"It carries as much on {places} {verb(len(others), 'host', 'hosts')}."] if others else []
    said = [f"about {number(row['factor'] * carries)} requests/s on the {row['host']} host"
            if row["factor"] is not None else f"any rate on the {row['host']} host" for row in others]
    return [f"It carries {joined(said)}. {LEARN}"]


def months_text(months: float) -> str:
    """Months until something: 102, 9.4."""
    return f"{months:.0f}" if months >= 10 else f"{months:.1f}"


def first_relief(relief: Sequence[Data]) -> str:
    """What more of the resource that holds it back brings; empty where none stands out."""
    best = next(iter(relief), None)
    if best is None or (best["gain_pct"] is not None and best["gain_pct"] <= 2):
        return ""
    if best["gain_pct"] is None:
        return f"With 25 % more {best['resource']} no limit breaks at any rate."
    near = [row["resource"] for row in relief[1:] if (row["gain_pct"] or 0.0) >= best["gain_pct"] - TIE]
    less = "; 25 % more of anything else gains less"
    if near:
        less = f"; of {' or '.join(near)} as much, as far as can be told"
    return f"25 % more {best['resource']} carries {best['gain_pct']:.0f} % more{less}."


def _growth_lines(data: Data) -> list[str]:
    """Where the traffic is, and when it is at the wall."""
    ratio = data["rate"] / data["traffic"]
    if ratio < 1:
        return [f"It does not carry the scenario's own {data['traffic']:.3g} requests/s: only {share(ratio)} of them."]
    text = f"The scenario's own traffic is {data['traffic']:.3g} requests/s, {share(1 / ratio)} of that."
    months = data["steps"][0]["months"] if data["steps"] else {}
    when = [f"{months_text(count)} months at {g} % a month" for g, count in months.items()]
    return [f"{text} Growing, it gets there in {', '.join(when)}." if when else text]


def step_rows(data: Data) -> list[tuple[str, ...]]:
    """(fleet, up to which rate it does, then, months by growth...)."""
    rows = []
    for k, step in enumerate(data["steps"]):
        last = k + 1 == len(data["steps"])
        then = "larger ones were not looked at" if last else f"add a replica before {step['rate']:.3g} requests/s"
        months = (months_text(months) for months in list(step["months"].values())[:MOST_GROWTHS])
        rows.append((counted(step), f"{step['rate']:.3g}", then, *months))
    return rows


def span_line(data: Data) -> str:
    """That larger fleets were seen over less time than the first; empty where all were alike."""
    spans = [step["span_s"] for step in data["steps"] if step.get("span_s")]
    if not spans or min(spans) > ALIKE * spans[0]:
        return ""
    most, least = (step["replicas"] for step in (data["steps"][0], data["steps"][-1]))
    return (f"Seen over {spans[0]:,.0f} s of arrivals with {several(most, 'replica')}, over {spans[-1]:,.0f} s with "
            f"{least}: what a larger fleet does for so short a time it may not do for longer. A longer trace shows it.")


def growths_shown(data: Data) -> list[str]:
    """[% a month] the growths of the step table; none without one."""
    return list(data["steps"][0]["months"])[:MOST_GROWTHS] if data["steps"] else []


def steps_table(data: Data) -> Table:
    """step_rows on the screen."""
    title = "Replicas as traffic grows; months from now at a growth a month of"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("replicas", "carry [1/s]", "then", *(f"{g} %" for g in growths_shown(data))):
        table.add_column(column, justify="left" if column == "then" else "right", no_wrap=True)
    for row in step_rows(data):
        table.add_row(*row)
    return table


def capacity_tables(data: Data) -> Iterator[Any]:
    """What `servecast capacity` prints."""
    yield Text(f"{data['name']}: capacity", style="bold")
    for line in capacity_lines(data):
        yield Text(line)
    if data["steps"]:
        yield steps_table(data)
        yield from (Text(line) for line in [span_line(data)] if line)


def csv_text(rows: Sequence[Data]) -> str:
    """Rows with equal or different keys as CSV, missing values empty."""
    import csv
    import io

    names = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
