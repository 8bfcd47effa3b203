"""Several deployments on screen and paper: what to buy of all, who gets what, and a folder of evidence for each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from simulator.planning.price import HOURS_PER_MONTH
from simulator.report.folder import new_folder
from simulator.report.load.words import first_relief, months_text
from simulator.report.plan.budget import budget_text
from simulator.report.plan.data import NOT_MODELLED
from simulator.report.plan.forest import Bar, forest
from simulator.report.plan.page import plan_files
from simulator.report.plan.words import bought_gpus, gpu_words, paid_for, replica_words
from simulator.report.render import render
from simulator.report.trusted import mark_line
from simulator.report.write import json_text
from simulator.text import counted, gain, level_value, number, several, stopped_lines, times

Data = Mapping[str, Any]


def joint_lines(data: Data) -> list[str]:
    """The answer in plain words, most important first."""
    if data["budget"] is None:
        return _plan_lines(data) + stopped_lines(data)
    return (_no_split(data) if data["common"] is None else _split_lines(data)) + stopped_lines(data)


def _cost(data: Data) -> str:
    example = " (example prices)" if data["price_assumed"] else ""
    return f"{data['usd_per_hour']:,.2f} USD/h{example}, {HOURS_PER_MONTH * data['usd_per_hour']:,.0f} USD/month"


def _bought(data: Data) -> str:
    """`5 GPUs`; where others are paid for already, `5 GPUs beside 4 paid for`."""
    count = sum(bought_gpus(row) for row in data["deployments"] if row["gpus"])
    paid = f" beside {data['gpus'] - count} paid for" if count < data["gpus"] else ""
    return f"{gpu_words(count) if count else 'nothing'}{paid}"


def _shares(data: Data) -> str:
    """`chat 8, autocomplete 3, agents 4`: GPUs of those that have any, by name where they differ."""
    rows = [row for row in data["deployments"] if row["gpus"]]
    return ", ".join(f"{row['name']} {_share(data, row)}" for row in rows)


def _share(data: Data, row: Data) -> str:
    """`3`, `3 x l40s`; of unlike replicas `1 x l40s and 2 x a100-sxm-80gb (paid for)`."""
    other = row.get("beside")
    if not other:
        return _gpus(data, row["gpus"], row["gpu"])
    kind = next((kind for kind in row["gpu"].split(" and ") if kind != other["gpu"]), other["gpu"])
    own = row["gpus"] - other["gpus"]
    beside = f"{other['gpus']} x {other['gpu']}{' (paid for)' if paid_for(other) else ''}"
    return f"{own} x {kind} and {beside}" if own else beside


def _gpus(data: Data, count: int, gpu: str) -> str:
    """`8`, and of what where GPUs differ: `8 x l40s`."""
    known = [*data["more"], *([data["needs"]] if data["needs"] else [])]
    splits = [kind for split in known for kind in split["kinds"]]
    kinds = {row["gpu"] for row in data["deployments"] if row["gpus"]}.union(splits)
    return str(count) if len(kinds) == 1 else f"{count} x {gpu}"


def _plan_lines(data: Data) -> list[str]:
    rows = [row for row in data["deployments"] if row["gpus"]]
    if data["feasible"]:
        lines = [f"Buy {_bought(data)}: {_shares(data)}; {_cost(data)}."]
    else:
        lines = [f"No fleet for {row['name']}: {row['reason']}." for row in data["deployments"]
                 if row["name"] in data["failed"]]  # fmt: skip
        others = "The others take" if data["failed"] else "Found by then:"
        lines += [f"{others} {gpu_words(data['gpus'])}: {_shares(data)}; {_cost(data)}."] if rows else []
    if data["spare_gpus"]:
        lines.append(_spare_line(data))
    least = _nearest(data)
    if least:
        range_ = f"{_percent(least['low'])} to {_percent(least['high'], 'more')}"
        lines.append(f"Nearest to its wall is {least['name']}: {_percent(least['carries'])} more traffic ({range_}) "
                     f"until {_broken(least)}.")  # fmt: skip
    return lines + [_deployment_line(row) for row in rows] + _trust_lines(data)


def _trust_lines(data: Data) -> list[str]:
    """What the step times of each model stand on, and how much more the report says."""
    known = [(row["name"], row["trust"]) for row in data["deployments"] if row.get("trust")]
    if not known or all(trust["mark"] == "textbook" for _, trust in known):
        return ["Step times are a textbook's: they have no error."] if known else []
    how = "how far they may be off" if data["budget"] else "the margin they are judged with"
    marks = ", ".join(f"{name} {trust['mark']} ({100 * trust['step_time_error']:.1f} %)" for name, trust in known)
    beyond = len({text for _, trust in known for text in trust["not_measured"]})
    more = f" {several(beyond, 'note')} on what was not measured: in the report." if beyond else ""
    return [f"Step times, in brackets {how}: {marks}.{more}"]


def _trusted(data: Data) -> list[str]:
    """The same for a section of its own: the mark of each model, then each that was not measured, with whose it is."""
    rows = [row for row in data["deployments"] if row.get("trust")]
    lines = [mark_line(row["trust"], data["budget"] is None).replace("Step times", f"Step times of {row['name']}", 1)
             for row in rows]
    notes: dict[str, list[str]] = {}
    for row in rows:
        for text in row["trust"]["not_measured"]:
            notes.setdefault(text, []).append(row["name"])
    return lines + [f"Not measured, {', '.join(names)}: {text}." for text, names in notes.items()]


def _spare_line(data: Data) -> str:
    """What it costs that replicas may fail."""
    rows = [row for row in data["deployments"] if row["spare"]]
    *names, last = (row["name"] for row in rows)
    who = f"{', '.join(names)} and {last} may each lose" if names else f"{last} may lose"
    what = "a replica" if all(row["spare"] == 1 for row in rows) else "as many replicas as survive says"
    count, usd = data["spare_gpus"], data["spare_usd_per_hour"]
    return f"{gpu_words(count)} of that, {usd:,.2f} USD/h, {'is' if count == 1 else 'are'} spare: {who} {what}."


def _deployment_line(row: Data) -> str:
    levels = "; ".join(f"{level['name']} {level_value(level, 'value')} of {level_value(level, 'limit')}"
                       for level in row["levels"])  # fmt: skip
    rate = f"{number(row['traffic'])} requests/s"
    if row["carries"] is not None and row["carries"] < 1:
        carried = number(row["carries"] * row["traffic"])
        with_all = f"; with all of them {levels}" if levels else ""
        return f"{row['name']}: {replica_words(row)} for {carried} of its {rate}{with_all}."
    return f"{row['name']}: {replica_words(row)} for {rate}{f'; {levels}' if levels else ''}."


def _nearest(data: Data) -> Data | None:
    """The deployment with the least room, of those whose wall is known."""
    walled = [row for row in data["deployments"] if row["wall"] and row["carries"] is not None]
    return min(walled, key=lambda row: row["carries"], default=None)


def _broken(row: Data) -> str:
    return "requests pile up" if row["breaks"] == "overload" else f"{row['breaks'] or 'a limit'} breaks"


def _percent(carries: float | None, missing: str = "less") -> str:
    return missing if carries is None else f"{100 * (carries - 1):.0f} %"


def _no_split(data: Data) -> list[str]:
    if data["failed"] and data["reason"] and len(data["failed"]) < len(data["deployments"]):
        return [f"No fleet for {data['failed'][0]}: {data['reason']}."]
    return [f"{budget_text(data)}: {data['reason']}."] if data["reason"] else []


def times_text(carries: float | None) -> str:
    """`1.31 times`; of what no limit bounds that it is so."""
    return "any multiple of" if carries is None else f"{carries:.2f} times"


def _split_lines(data: Data) -> list[str]:
    common = data["common"]
    count = len(data["deployments"])
    range_ = f" ({_factor(common['low'], 'less')} to {_factor(common['high'], 'more')})" if common["first"] else ""
    if common["first"] and not common["low"] and not common["high"]:
        range_ = ""
    carry = "carry" if budget_text(data).endswith("s") else "carries"
    used = f"{data['gpus']} of the " if "gpus" in data["budget"] and common["left"] >= 0.5 else ""
    lines = [f"{used}{budget_text(data)} {carry} {times_text(common['carries'])} the traffic of all {count}{range_}: "
             f"{_shares(data)}; {_cost(data)}."]  # fmt: skip
    lines += [_spare_line(data)] if data["spare_gpus"] else []
    if common["first"]:
        row = next(row for row in data["deployments"] if row["name"] == common["first"])
        seen = f" (seen over {row['span_s']:,.0f} s of arrivals)" if row["span_s"] else ""
        lines.append(f"First at its wall is {row['name']}: just above, {row['words'] or _broken(row)}{seen}.")
        lines += [first_relief(data["relief"])] if first_relief(data["relief"]) else []
    lines += _left_lines(data)
    if data["needs"] and common["carries"] is not None:
        lines.append(_needs_line(data))
    for split in data["more"]:
        shares = _split_words(data, split)
        lines.append(f"{_amount(data, split)} would carry {times_text(split['carries'])} it: {shares}.")
    if common["months"] and common["carries"] and common["carries"] > 1:
        when = ", ".join(f"{months_text(count)} months at {g} % a month" for g, count in common["months"].items())
        lines.append(f"Traffic that grows gets there in {when}.")
    return lines + [_deployment_line(row) for row in data["deployments"]] + _trust_lines(data)


def _left_lines(data: Data) -> list[str]:
    """What of the budget nobody can use, and whether more replicas could."""
    common = data["common"]
    if common["left"] < 0.005:
        return []
    gpus = "gpus" in data["budget"]
    left = gpu_words(round(common["left"])) if gpus else f"{common['left']:,.2f} USD/h"
    rest = f"{left} {'are' if left.endswith('s') else 'is'} left over"
    if data["stopped"]:
        return [f"{rest} so far."]
    if common["capped"]:
        return [f"{rest}: {common['first']} is allowed no more replicas (candidates.replicas)."]
    return [f"{rest}: no deployment that is at its wall gets further with it."]


def _needs_line(data: Data) -> str:
    """What the traffic as it is takes."""
    needs, carries = data["needs"], data["common"]["carries"]
    amount, shares = _amount(data, needs), _split_words(data, needs)
    if carries < 1:
        return f"The traffic as it is takes {amount}: {shares}."
    if needs["split"] == [row["gpus"] for row in data["deployments"]]:
        return f"The traffic as it is takes just as {'many' if 'gpus' in data['budget'] else 'much'}: {amount}."
    return f"The traffic as it is takes {amount} of it: {shares}."


def _amount(data: Data, split: Data) -> str:
    """What a split takes of the kind of budget that is asked about."""
    return gpu_words(split["gpus"]) if "gpus" in data["budget"] else f"{split['budget']:,.2f} USD/h"


def _split_words(data: Data, split: Data) -> str:
    found = zip(data["deployments"], split["split"], split["kinds"], strict=True)
    return ", ".join(f"{row['name']} {_gpus(data, gpus, kind)}" for row, gpus, kind in found)


def _factor(value: float | None, missing: str) -> str:
    return missing if value is None else times(value)


def room_text(data: Data, row: Data) -> str:
    """How much more traffic a fleet takes, or how many times it, with its range."""
    if row["gpus"] is None or not row["explained"]:
        return "–"
    if row["carries"] is None:
        return "no wall"
    if data["budget"] is None:
        return f"{_percent(row['carries'])} ({_percent(row['low'])} to {_percent(row['high'], 'more')})"
    if row["low"] is None and row["high"] is None:
        return times(row["carries"])
    return f"{times(row['carries'])} ({_factor(row['low'], 'less')} to {_factor(row['high'], 'more')})"


def joint_tables(data: Data) -> Iterator[Any]:
    """What `servecast plan` prints of several deployments."""
    asked = "" if data["budget"] is None else f"{budget_text(data)}, "
    yield Text(f"{data['name']}: {asked}{len(data['deployments'])} deployments", style="bold")
    for line in joint_lines(data):
        yield Text(line)
    table = Table(title="Deployments", title_justify="left", box=None, padding=(0, 2, 0, 0))
    room = "headroom" if data["budget"] is None else "carries"
    for column in ("deployment", "fleet", "replicas", "GPUs", "USD/h", room, "breaks, or why not"):
        table.add_column(column, justify="right" if column in ("replicas", "GPUs", "USD/h") else "left")
    for row in data["deployments"]:
        why = row["breaks"] or row["reason"] or ("" if row["gpus"] else row["status"])
        if row["gpus"] is None:
            table.add_row(row["name"], "–", "–", "–", "–", "–", why)
        else:
            table.add_row(row["name"], row["label"], counted(row), str(row["gpus"]),
                          f"{row['usd_per_hour']:.2f}", room_text(data, row), why)  # fmt: skip
    table.add_row("together", "", "", str(data["gpus"]), f"{data['usd_per_hour']:.2f}", "", "", style="bold")
    yield table


def manifests(data: Data) -> str:
    """Deployments and Services of all, one YAML; of those that have none, why not as a comment."""
    parts = []
    for row in data["deployments"]:
        made = row["export"].get("kubernetes")
        why = row["export"].get("reason") or row["reason"] or "no manifest is written for its engine"
        parts.append(made or f"# {row['name']}: {' '.join(why.split())}\n")
    return "---\n".join(parts) if any(row["export"].get("kubernetes") for row in data["deployments"]) else ""


def write_joint(data: Data, out: Path) -> None:
    """deployments.json, report.html, deploy.yaml and a folder for each plan in `out`, whole or not at all."""
    files = {"deployments.json": json_text(data), "report.html": render_joint(data)}
    if manifests(data):
        files["deploy.yaml"] = manifests(data)
    for name, own in data["plans"].items():
        files |= {f"{name}/{file}": text for file, text in plan_files(own).items()}
    with new_folder(out) as folder:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


def _cards(data: Data) -> list[tuple[str, str, str]]:
    """What to buy, its cost, what it carries, what breaks first."""
    if not data["gpus"]:
        return []
    example = " (example prices)" if data["price_assumed"] else ""
    month = HOURS_PER_MONTH * data["usd_per_hour"]
    cards = [("fleet", _bought(data), _shares(data)),
             ("cost", f"{data['usd_per_hour']:,.2f} USD/h", f"{month:,.0f} USD a month{example}")]  # fmt: skip
    if data["spare_gpus"]:
        cards.append(("spare", gpu_words(data["spare_gpus"]), f"{data['spare_usd_per_hour']:,.2f} USD/h of that"))
    common, least = data["common"], _nearest(data)
    if common:
        low, high = _factor(common["low"], "less"), _factor(common["high"], "more")
        text = "any" if common["carries"] is None else times(common["carries"])
        note = f"the traffic of each; {low} to {high}" if common["first"] else "no limit breaks"
        cards.append(("all carry", text, note))
    elif least:
        cards.append(("least headroom", _percent(least["carries"]), f"{least['name']}; {_percent(least['low'])} to "
                      f"{_percent(least['high'], 'more')}"))  # fmt: skip
    if least and least["breaks"]:
        cards.append(("breaks first", least["breaks"], f"of {least['name']}"))
    if common and first_relief(data["relief"]):
        cards.append(("bottleneck", data["relief"][0]["resource"], f"of {common['first']}"))
    elif least and least["bottleneck"]:
        cards.append(("bottleneck there", least["bottleneck"], "of it 25 % more moves the wall furthest"))
    cards.append(("power, estimate", f"{data['watts_estimate'] / 1000:.3g} kW", "GPUs at rated maximum"))
    return cards


def _picture(data: Data) -> str:
    """How much traffic every fleet carries, against the planned."""
    rows = [row for row in data["deployments"] if row["wall"] and row["carries"]]
    first = _nearest(data)
    bars = [Bar(row["name"], row["low"] or row["carries"], row["high"] or row["carries"], row["carries"],
                room_text(data, row), "var(--bad)" if first and row["name"] == first["name"] else "var(--muted)")
            for row in rows]  # fmt: skip
    return forest(bars, "traffic that each fleet carries", "traffic carried, against the planned")


def render_joint(data: Data) -> str:
    """The page of several deployments."""
    return render(
        "deployments.html",
        title=f"{data['name']}: {len(data['deployments'])} deployments",
        data=data,
        answer=joint_lines(data) or ["Nothing is known yet."],
        cards=_cards(data),
        picture=Markup(_picture(data)),
        manifest=manifests(data),
        trusted=_trusted(data),
        not_modelled=NOT_MODELLED,
        room_text=room_text,
        level_value=level_value,
        times_text=times_text,
        split_words=_split_words,
        amount=_amount,
        counted=counted,
        gain=gain,
    )
