"""The plan's report: one self-contained HTML page, the same as Markdown, and plan.json. Made from plan_plain's data.

The page holds one small script (tables sort by a click on their head); its hash is in the page's own content
security policy, and nothing else may run. Every value is escaped by the template engine.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from simulator.report.plan.alternatives import alternative_rows, end_text, tornado
from simulator.report.plan.charts import Series, chart, columns
from simulator.report.plan.levels import chosen_words
from simulator.report.plan.limits import limit_rows
from simulator.report.plan.purchases import purchase_rows
from simulator.report.plan.words import (
    WORTH_PCT,
    answer_lines,
    bought_gpus,
    example_price,
    fleet_words,
    gpu_words,
    mix_words,
    replica_words,
)
from simulator.report.render import markdown_cell, render
from simulator.text import bounded, counted, counted_range, gain, level_value, moment, replicas_text

Data = Mapping[str, Any]

def render_plan(data: Data) -> str:
    """The whole page."""
    return render(
        "plan.html",
        title=f"{data['name']}: plan",
        data=data,
        answer=answer_lines(data),
        cards=_cards(data),
        pictures=pictures(data),
        limits=limit_rows(data["batch_limits"]),
        others=alternative_rows(data),
        purchases=purchase_rows(data),
        tornado=Markup(tornado(data["answer"]["sensitivity"] if data["answer"] else [])),
        end_text=end_text,
        level_value=level_value,
        duration=bounded,
        moment=moment,
        gain=gain,
        chosen_words=chosen_words,
        fleet_words=fleet_words,
        counted=counted,
        counted_range=counted_range,
    )


def render_markdown(data: Data) -> str:
    """The same without pictures."""
    return render(
        "plan.md",
        data=data,
        answer=answer_lines(data),
        level_value=level_value,
        duration=bounded,
        gain=gain,
        fleet_words=fleet_words,
        counted=counted,
        mix_words=mix_words,
        others=alternative_rows(data),
        purchases=purchase_rows(data),
        end_text=end_text,
        cell=markdown_cell,
    )


def write_plan(data: Data, out: Path) -> None:
    """plan.json, report.html, report.md, deploy.yaml and autoscaler.yaml in `out`, whole or not at all."""
    from simulator.report.folder import new_folder

    files = plan_files(data)
    with new_folder(out) as folder:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")


def plan_files(data: Data) -> dict[str, str]:
    """What a folder of a plan holds, by name."""
    dump = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    files = {"plan.json": dump + "\n", "report.html": render_plan(data), "report.md": render_markdown(data)}
    for name, key in (("deploy.yaml", "kubernetes"), ("autoscaler.yaml", "autoscaler")):
        if key in data["export"]:
            files[name] = data["export"][key]
    return files


def _cards(data: Data) -> list[tuple[str, str, str]]:
    best, answer = data["recommended"], data["answer"]
    if best is None:
        return []
    cards = [
        (
            "fleet",
            gpu_words(bought_gpus(best)) if bought_gpus(best) else "nothing",
            replica_words(best),
        ),
        (
            "cost",
            f"{best['usd_per_hour']:,.2f} USD/h",
            f"{best['usd_per_month']:,.0f} USD a month{example_price(best)}",
        ),
        (
            "per million tokens",
            f"{best['usd_per_million_output_tokens']:.3g} USD",
            f"output; {best['usd_per_million_tokens']:.3g} USD of all tokens{example_price(best)}",
        ),
    ]
    if answer and answer["relief"]:
        cards += [
            ("headroom", f"{answer['headroom_pct']:.0f} %", _headroom_note(answer)),
            ("breaks first", answer["breaks"], "just above the wall"),
            ("bottleneck at the wall", answer["bottleneck"], "of it 25 % more moves the wall furthest"),
        ]
        change = next(iter(answer["changes"]), None)
        if change and change["per_dollar_gain_pct"] is not None and change["per_dollar_gain_pct"] >= WORTH_PCT:
            cards.append(("next change", change["change"], f"{gain(change['per_dollar_gain_pct'])} traffic per dollar"))
    cards.append(("power, estimate", f"{best['watts_estimate'] / 1000:.3g} kW", "GPUs at rated maximum"))
    return cards


def _headroom_note(answer: Data) -> str:
    low, high = answer["headroom_range"]
    upto = "more" if high is None else f"{high:.0f} %"
    return f"{low:.0f} % to {upto}; wall at {answer['wall_rate']:.3g} requests/s"


def pictures(data: Data) -> list[dict[str, Any]]:
    """Charts with captions; one that has no data is left out."""
    drawn = [_front(data), _goodput(data), _latency(data), _hours(data)]
    return [{"svg": Markup(svg), "caption": caption} for svg, caption in drawn if svg]


def _front(data: Data) -> tuple[str, str]:
    rows = [row for row in data["front"] if all(v is not None for v in row["latency_s"].values())]
    if not rows:
        return "", ""
    name, why = _drawn(data, rows[0]["latency_s"])
    series = []
    for label in dict.fromkeys(row["label"] for row in rows):
        own = [row for row in rows if row["label"] == label]
        points = [(row["usd_per_hour"], 1000 * row["latency_s"][name], _front_words(row)) for row in own]
        series.append(Series(label, points, ring=frozenset(i for i, row in enumerate(own) if row["best"])))
    limit = next((level["limit_s"] for level in data["question"]["slo"] if level["name"] == name), None)
    lines = [(1000 * limit, "limit")] if isinstance(limit, float) else []
    svg = chart(series, "USD per hour", f"{name} [ms]", "cost against latency", horizontals=lines)
    return svg, f"Cost against {name}{why}: each point is a fleet; ringed ones are the Pareto front over all levels."


def _drawn(data: Data, known: Mapping[str, Any]) -> tuple[str, str]:
    """The level to draw of those in `known`, and why: the one that breaks first, else the one nearest to its limit."""
    limits = {level["name"]: level["limit_s"] for level in data["question"]["slo"]}
    names = [name for name in known if isinstance(limits.get(name), float)] or list(known)
    first = data["answer"]["breaks"] if data["answer"] else ""
    if first in names:
        return first, ", the level that breaks first" if len(names) > 1 else ""
    of_limit = {level["name"]: (level["value"] or 0.0) / level["limit"] for level in data["recommended"]["levels"]
                if level["name"] in names and level["limit"]}  # fmt: skip
    nearest = max(of_limit, key=lambda name: of_limit[name], default=names[0])
    return nearest, ", the level nearest to its limit" if len(names) > 1 else ""


def _front_words(row: Data) -> str:
    levels = ", ".join(f"{k} {level_value({'name': k, 'v': v}, 'v')}" for k, v in row["latency_s"].items())
    fleet = replica_words(row) if row.get("beside") else f"{row['replicas']} × {row['label']}"
    return f"{fleet}: {row['usd_per_hour']:.2f} USD/h; {levels}"


def _curve(data: Data) -> Sequence[Data]:
    return data["answer"]["curve"] if data["answer"] else []


def _marks(data: Data) -> list[tuple[float, str]]:
    return [(data["question"]["requests_per_s"], "planned"), (data["answer"]["wall_rate"], "wall")]


def _goodput(data: Data) -> tuple[str, str]:
    rows = _curve(data)
    if not rows:
        return "", ""
    good = [
        (
            r["requests_per_s"],
            r["goodput_per_s"],
            f"{r['requests_per_s']:.4g} requests/s offered, {r['goodput_per_s']:.4g} within every limit",
        )
        for r in rows
    ]
    offered = [(0.0, 0.0, ""), (good[-1][0], good[-1][0], "")]
    svg = chart(
        [Series("within every limit", good), Series("offered", offered, dashed=True, marks=False)],
        "requests/s offered",
        "requests/s",
        "goodput against rate",
        verticals=_marks(data),
    )
    return svg, "Goodput of the recommended fleet: requests that meet every limit, against the traffic offered."


def _latency(data: Data) -> tuple[str, str]:
    rows, limits = _curve(data), {level["name"]: level["limit_s"] for level in data["question"]["slo"]}
    names = [name for name, limit in limits.items() if isinstance(limit, float) and rows and name in rows[0]]
    if not names:
        return "", ""
    series = []
    for name in names:
        points = [
            (
                r["requests_per_s"],
                100 * (r[name] if r[name] is not None else math.inf) / limits[name],
                f"{name} {bounded(r[name])} at {r['requests_per_s']:.4g} requests/s",
            )
            for r in rows
        ]
        series.append(Series(name, points))
    svg = chart(
        series,
        "requests/s offered",
        "share of the limit [%]",
        "service levels against rate",
        y_max=200.0,
        horizontals=[(100.0, "limit")],
        verticals=_marks(data),
    )
    return svg, "Service levels of the recommended fleet in per cent of their limits (cut at 200)."


def _hours(data: Data) -> tuple[str, str]:
    day = data["answer"]["hourly"] if data["answer"] else None
    if not day:
        return "", ""
    values = [(str(k), float(n), f"hour {k}: {replicas_text(n)}") for k, n in enumerate(day["replicas"])]
    svg = columns(values, "replicas", "replicas hour by hour", float(data["recommended"]["replicas"]))
    return svg, (
        f"Replicas if the fleet is resized every hour: {day['saving_pct']:.0f} % fewer replica hours, "
        f"{day['usd_per_day_saved']:.2f} USD a day. Starting and draining replicas is not counted."
        f"{mix_words(day)}"
    )
