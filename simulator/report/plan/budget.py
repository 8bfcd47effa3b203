"""What a budget buys, on screen and paper; works on the plain data of planning.budget.spend."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from simulator.planning.price import HOURS_PER_MONTH
from simulator.report.folder import new_folder
from simulator.report.load.words import (
    carried_lines,
    csv_text,
    first_relief,
    growths_shown,
    months_text,
    span_line,
    step_rows,
    steps_table,
)
from simulator.report.plan.data import NOT_MODELLED
from simulator.report.plan.forest import Bar, forest
from simulator.report.plan.limits import limit_lines, limit_rows
from simulator.report.plan.words import bought_gpus, example_price, export_texts, fleet_words, gpu_words, replica_words
from simulator.report.render import render
from simulator.report.trusted import short_line, trusted_lines
from simulator.report.write import json_text
from simulator.text import counted, gain, level_value, number, rate_words, sentence, stopped_lines

Data = Mapping[str, Any]


def budget_text(data: Data) -> str:
    """`40 USD/h`, `16 GPUs` or `4 replicas`."""
    given = data["budget"]
    if "usd_per_hour" in given:
        return f"{given['usd_per_hour']:g} USD/h"
    what, count = next(iter(given.items()))
    return f"{count} {'GPU' if what == 'gpus' else 'replica'}{'' if count == 1 else 's'}"


def _budget(data: Data, many: str, one: str) -> str:
    """`16 GPUs buy`, `40 USD/h buys`."""
    text = budget_text(data)
    return f"{text} {many if text.endswith('s') else one}"


def carries_text(row: Data, unit: str = " requests/s") -> str:
    """`118 requests/s (101 to 130)`; a dash where a fleet was not simulated at all."""
    if row["carries"] is None:
        return "nothing" if row["levels"] else "–"
    if not row["wall"]:
        return f"over {number(row['carries'])}{unit}, no limit breaks"
    low = number(row["low"]) if row["low"] else "less"
    return f"{number(row['carries'])}{unit} ({low} to {number(row['high'], 'more')})"


def level_words(row: Data) -> str:
    """Every level at the plan's traffic: `p95 TTFT 3.14 s (limit 2 s: missed); p95 TPOT 21 ms (limit 50 ms)`."""
    return "; ".join(f"{level['name']} {level_value(level, 'value')} (limit {level_value(level, 'limit')}"
                     f"{': missed' if _missed(level) else ''})" for level in row["levels"])  # fmt: skip


def _missed(level: Data) -> bool:
    return level["value"] is None or bool(level["value"] > level["limit"])


def falls_short(data: Data) -> bool:
    """Whether the best fleet does not carry the plan's traffic within the limits."""
    best = data["best"]
    return bool(best and (not best["meets"] or (best["wall"] and best["carries"] < data["traffic"])))


def budget_lines(data: Data) -> list[str]:
    """The answer in plain words, most important first."""
    best = data["best"]
    if best is None:
        buys = _budget(data, "buy", "buys")
        none = f"{buys} no fleet that meets the levels at any rate: {data['rows'][0]['reason']}."
        return stopped_lines(data) or [none]
    words = replica_words if data["budget"].get("gpus") == best["gpus"] else fleet_words
    cost = f"{words(best | {'spare': data['survive']})}, {best['usd_per_hour']:.2f} USD/h{example_price(best)}"
    rate, there = rate_words(data["traffic"], data["asked_per_s"]), "replicas" in data["budget"]
    if data["objective"] == "best_slo":
        lines = [f"{_budget(data, 'are', 'is')} best spent on {cost}: at {rate}, {level_words(best)}.",
                 f"It carries {carries_text(best)} within the limits."]  # fmt: skip
    else:
        most = f"{_budget(data, 'carry', 'carries')} most as {cost}: {carries_text(best)}."
        piles = "requests pile up; " if _piles_up(best) else ""
        lines = [f"{cost}, carries {carries_text(best)}." if there else most]
        lines.append(f"At the plan's traffic, {rate}: {piles}{level_words(best)}.")
    if falls_short(data):
        carry = _budget(data, "do not carry", "does not carry")
        lines[0] = f"{carry} the plan's {number(data['traffic'])} requests/s within the limits. {lines[0]}"
    lines += _static_lines(data)
    lines += [short_line(data["trust"])] if data.get("trust") else []
    if best["breaks"]:
        lines.append(f"Just above what it carries: {best['breaks']['words']} (seen over {best['span_s']:,.0f} s of "
                     "arrivals).")  # fmt: skip
    lines += [first_relief(data["relief"])] if first_relief(data["relief"]) else []
    lines += carried_lines(data["hosts"], best["carries"]) + [f"{text}." for text in data["cannot_be_told_apart"]]
    lines += limit_lines(data["batch_limits"], best["label"])
    if data["steps"] and not falls_short(data):
        months = data["steps"][0]["months"].items()
        when = ", ".join(f"{months_text(count)} months at {g} % a month" for g, count in months)
        lines.append(f"Traffic that grows gets there in {when}.")
    return lines + stopped_lines(data)


def _piles_up(row: Data) -> bool:
    """Whether the traffic of the plan is more than a fleet keeps up with, though every level is within its limit."""
    return row["meets"] is False and not any(map(_missed, row["levels"]))


def _static_lines(data: Data) -> list[str]:
    """How many times what static batches carry, where the best fleet has continuous ones and both were tried."""
    best = data["best"]
    rows = [row for row in data["rows"] if "static" in row["label"].split(", ") and row["carries"]]
    if not rows or not best["carries"] or "chunked" not in best["label"].split(", "):
        return []
    most = max(rows, key=lambda row: float(row["carries"]))
    factor = best["carries"] / most["carries"]
    return [f"chunked is continuous batching, with prompts in chunks: it carries {factor:.3g} times what static "
            f"batches do at best, {number(most['carries'])} requests/s with {most['label']}."]


def budget_tables(data: Data) -> Iterator[Any]:
    """What `servecast plan` prints of a budget."""
    yield Text(f"{data['name']}: {budget_text(data)}, {data['objective'].replace('_', ' ')}, {data['model']}",
               style="bold")  # fmt: skip
    for line in budget_lines(data):
        yield Text(line)
    table = Table(title="Candidates", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("candidate", "replicas", "GPUs", "USD/h", "carries [1/s]", "of best", "breaks first, or why not"):
        table.add_column(column, justify="left" if column.startswith(("candidate", "breaks")) else "right")
    for row in data["rows"]:
        reason = row["breaks"]["level"] if row["breaks"] else row["reason"]
        carried = "-" if row["carries"] is None else number(row["carries"])
        count = (counted(row), str(row["gpus"]), f"{row['usd_per_hour']:.2f}")
        table.add_row(row["label"], *count, carried, of_best(row, data), reason)
    yield table
    if data["steps"]:
        yield steps_table(data)
        yield from (Text(line) for line in [span_line(data)] if line)
    yield from export_texts(data.get("export", {}))


def write_budget(data: Data, out: Path) -> None:
    """budget.json, candidates.csv, report.html and deploy.yaml in `out`, whole or not at all."""
    page = render_budget(data)
    with new_folder(out) as folder:
        (folder / "budget.json").write_text(json_text(data), encoding="utf-8")
        rows = [{k: v for k, v in row.items() if k not in ("levels", "breaks")} for row in data["rows"]]
        (folder / "candidates.csv").write_text(csv_text(rows), encoding="utf-8")
        (folder / "report.html").write_text(page, encoding="utf-8")
        if "kubernetes" in data.get("export", {}):
            (folder / "deploy.yaml").write_text(data["export"]["kubernetes"], encoding="utf-8")


def of_best(row: Data, data: Data) -> str:
    """What a fleet carries in per cent of what the best one does."""
    most = max((each["carries"] or 0.0 for each in data["rows"]), default=0.0)
    return f"{100 * row['carries'] / most:.0f} %" if row["carries"] and most else "–"


def _cards(data: Data) -> list[tuple[str, str, str]]:
    """What to buy, its cost, what it carries, what breaks first and what holds it back."""
    best = data["best"]
    if best is None:
        return []
    cost, month = best["usd_per_hour"], HOURS_PER_MONTH * best["usd_per_hour"]
    cards = [("fleet", gpu_words(bought_gpus(best)), replica_words(best | {"spare": data["survive"]})),
             ("cost", f"{cost:,.2f} USD/h", f"{month:,.0f} USD a month{example_price(best)}"),
             ("carries", f"{number(best['carries'])} requests/s", "and more: no limit breaks")]
    if best["wall"]:
        planned = f"; the plan has {number(data['traffic'])}" if falls_short(data) else ""
        cards[-1] = (*cards[-1][:2], f"{number(best['low'], 'less')} to {number(best['high'], 'more')}{planned}")
    if best["breaks"]:
        cards.append(("breaks first", best["breaks"]["level"], "just above what it carries"))
    if first_relief(data["relief"]):
        moved = data["relief"][0]
        cards.append(("bottleneck", moved["resource"], f"25 % more of it: {gain(moved['gain_pct'])}"))
    return cards


def _picture(data: Data) -> str:
    """What every fleet carries, with its range, against the best."""
    rows = [row for row in data["rows"] if row["carries"]]
    most = max((row["carries"] for row in rows), default=1.0)
    parts = [row["label"].split(", ") for row in rows]
    shared = set.intersection(*map(set, parts)) if parts else set()
    names = [", ".join(part for part in own if part not in shared) or ", ".join(own) for own in parts]
    best = data["best"] and data["best"]["label"]
    bars = [Bar(name, (row["low"] or row["carries"]) / most, (row["high"] or row["carries"]) / most,
                row["carries"] / most, carries_text(row), "var(--good)" if row["label"] == best else "var(--muted)")
            for name, row in zip(names, rows, strict=True)]  # fmt: skip
    return forest(bars, "what each fleet carries", "requests/s carried, against the best") if len(bars) > 1 else ""


def render_budget(data: Data) -> str:
    """The page of a budget."""
    return render(
        "budget.html",
        title=f"{data['name']}: what {_budget(data, 'buy', 'buys')}",
        data=data,
        answer=budget_lines(data),
        cards=_cards(data),
        picture=Markup(_picture(data)),
        steps=step_rows(data),
        spans=span_line(data),
        growths=growths_shown(data),
        carries_text=carries_text,
        counted=counted,
        of_best=of_best,
        gain=gain,
        level_words=level_words,
        level_value=level_value,
        missed=_missed,
        short=falls_short(data),
        limits=limit_rows(data["batch_limits"]),
        export=data.get("export", {}),
        trusted=trusted_lines(data.get("trust")),
        not_modelled=[sentence(text) for text in NOT_MODELLED],
    )
