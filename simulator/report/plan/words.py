"""A plan on the terminal: the answer in words, then tables. Works on the data of plan.json."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from simulator.report.plan.adapters import adapter_lines
from simulator.report.plan.alternatives import alternative_lines, ends_text, sensitivity_lines
from simulator.report.plan.hosts import host_lines
from simulator.report.plan.levels import level_lines
from simulator.report.plan.limits import limit_lines
from simulator.report.plan.purchases import purchase_lines
from simulator.report.trusted import trust_line
from simulator.text import (
    bounded,
    counted,
    counted_range,
    glued,
    level_value,
    rate_words,
    replicas_text,
    restarted,
    sentence,
    several,
    stopped_lines,
    verb,
)

Data = Mapping[str, Any]

WORTH_PCT: Final = 2.0
"""[%] A change that carries less more a dollar is not worth naming."""


def fleet_words(fleet: Data) -> str:
    """`16 GPUs: 8 replicas of h100-sxm, TP2, 1 replica of them spare`; of what is to be bought."""
    count = bought_gpus(fleet)
    return f"{gpu_words(count) if count else 'nothing'}: {replica_words(fleet)}"


def bought_gpus(fleet: Data) -> int:
    """GPUs of a fleet but those that are paid for already."""
    other = fleet.get("beside")
    count: int = fleet["gpus"] - (other["gpus"] if other and paid_for(other) else 0)
    return count


def paid_for(other: Data) -> bool:
    """Whether what stands beside a fleet's own replicas costs nothing."""
    return bool(other["price_usd_per_gpu_hour"] == 0)


def gpu_words(count: int) -> str:
    """`16 GPUs`, `1 GPU`."""
    return several(count, "GPU")


def replica_words(fleet: Data) -> str:
    """`8 replicas of h100-sxm, TP2, 1 replica of them spare`; `1 replica of h100-sxm, least work, beside 4 replicas of
    a100-sxm-80gb (paid for)`."""
    other = fleet.get("beside")
    if other:
        paid = " (paid for)" if paid_for(other) else ""
        others = f"{replicas_text(other['replicas'])} of {other['kind']}{paid}"
        return f"{replicas_text(other['own'])} of {other['own_kind']}, beside {others}" if other["own"] else others
    spare = f", {replicas_text(fleet['spare'])} of them spare"
    return f"{replicas_text(fleet['replicas'])} of {fleet['label']}{spare if fleet['spare'] else ''}"


def answer_lines(data: Data) -> list[str]:
    """The answer in plain words, most important first."""
    best = data["recommended"]
    if best is None:
        return _no_answer(data)
    lines = [
        f"Buy {fleet_words(best)}: {best['usd_per_hour']:.2f} USD/h{example_price(best)}, "
        f"{best['usd_per_month']:,.0f} USD/month, "
        f"{best['usd_per_million_output_tokens']:.3g} USD per million output tokens.",
        *_example_prices(data),
        trust_line(best["trust"]),
    ]
    lines += level_lines(best)
    answer = data["answer"]
    lines += [f"{_smaller(best)} does not do: {best['fewer']}."] if best["fewer"] else []
    lines += host_lines(answer) if answer else []
    lines += worst_lines(best) + _survival(data)
    lines += limit_lines(data["batch_limits"], best["label"]) + alternative_lines(answer)
    lines += purchase_lines(answer)
    lines += adapter_lines(answer["adapters"] if answer else None, best["usd_per_hour"])
    if answer and answer["explained"]:
        lines += _headroom(answer) + sensitivity_lines(answer)
    lines += _length(best, data["question"])
    return lines + [f"{text}." for text in data["cannot_be_told_apart"]] + stopped_lines(data)


def example_price(fleet: Data) -> str:
    """` (example price)` where the price of a fleet's GPU is its profile's, not the plan's; else empty."""
    other = fleet.get("beside")
    return " (example price)" if fleet["price_assumed"] or (other and other["price_assumed"]) else ""


def _example_prices(data: Data) -> list[str]:
    """The GPUs whose price is an example, among the fleets that are priced."""
    fleets = [data["recommended"], *data["runners_up"]]
    priced = [f | {"gpu": f["candidate"]["gpu"]} for f in fleets] + [f["beside"] for f in fleets if f.get("beside")]
    prices = {f["gpu"]: f"{f['gpu']} {f['price_usd_per_gpu_hour']:.2f}" for f in priced if f["price_assumed"]}
    return (
        [f"Example prices, in USD per GPU and hour: {', '.join(prices.values())}. Yours go under prices."]
        if prices
        else []
    )


def _smaller(best: Data) -> str:
    """The fleet before this one: not always of one replica less, where a plan lists some numbers of them."""
    one_less = best["replicas"] - best["fewer_replicas"] == 1
    return "One replica less" if one_less else f"The next smaller fleet, of {replicas_text(best['fewer_replicas'])},"


def worst_lines(best: Data) -> list[str]:
    """The worst hour and the worst five minutes of each level."""
    by_name: dict[str, list[str]] = {}
    unasked = []
    for row in best["worst_windows"]:
        own = any(level["name"].startswith(f"{row['name']} in the worst ") for level in best["levels"])
        over = row["value"] is None or row["value"] > row["limit"]
        said = f", over the limit{'' if own else ' of all requests'}" if over else ""
        by_name.setdefault(row["name"], []).append(f"{bounded(row['value'])} in {row['window_s']:g} s{said}")
        if over and not own:
            unasked.append(row["name"])
    lines = [f"Worst window of {name}: {'; '.join(found)}." for name, found in by_name.items()]
    if unasked:
        lines.append("No limit was set on windows; slo.worst_5min and slo.worst_hour set one.")
    return lines


def _survival(data: Data) -> list[str]:
    """The fleet that is bought, and the moment of the loss."""
    answer = data["answer"]
    if not answer or not answer["loss"]:
        return []
    lost, levels = answer["loss"], answer["bought"]["levels"]
    shown = ", ".join(f"{level['name']} {level_value(level, 'value')}" for level in levels)
    lines = [f"With every replica up, and with the margin on step times: {shown}."]
    if not lost["modelled"]:
        return [*lines, f"The loss itself is {lost['why']}."]
    hit = ", ".join(
        f"{level['name']} {bounded(level['value'])}{'' if level['holds'] else ' (over the limit)'}"
        for level in lost["levels"]
    )
    back = f"met again after {lost['recovered_s']:g} s" if lost["recovered_s"] else "met all the time"
    back = "not met again before the end" if lost["recovered_s"] is None else back
    return [
        *lines,
        f"Losing {lost['replicas']} under load: {restarted(lost['restarted'])}; in the {lost['after_s']:g} s "
        f"after it {hit}; every level {back}.",
    ]


def _headroom(answer: Data) -> list[str]:
    if answer["wall_rate"] is None:
        return ["Headroom: no limit breaks however fast the requests of this trace arrive; there is no wall."]
    low, high = answer["headroom_range"]
    upto = "more" if high is None else f"{high:.0f} %"
    broken = answer.get("breaks") or "a limit"
    breaks = "requests pile up" if broken == "overload" else f"{broken} breaks first"
    return [
        f"Headroom: {answer['headroom_pct']:.0f} % more traffic until {breaks} ({low:.0f} % to {upto}; "
        f"the wall is at {answer['wall_rate']:.3g} requests/s); the bottleneck there is {answer['bottleneck']}.",
        *_next_change(answer),
    ]


def _length(best: Data, question: Data) -> list[str]:
    """The max_model_len that was chosen where the plan sets none, and whether the engine is sure to start with it."""
    own = min([best["replica"], best.get("beside", best)["replica"]], key=lambda each: int(each["kv_tokens"]))
    if own["shortened"]:
        return [
            f"max_model_len {own['max_model_len']:,}: the plan sets none, and of the model's {own['positions']:,} "
            f"positions that many surely fit one replica's KV memory ({own['kv_tokens']:,} tokens predicted); the "
            f"longest request has {question['longest']:,}."
        ]
    if own["at_the_edge"]:
        return [
            f"max_model_len {own['max_model_len']:,} is within the error of the predicted KV memory "
            f"({own['kv_tokens']:,} tokens): the engine may refuse to start with it."
        ]
    return []


def mix_words(day: Data) -> str:
    """How many replicas to reserve, and what that costs a day; empty where the plan has no price for it."""
    mix = day["mix"]
    if mix is None:
        return ""
    return (f" Reserved and on demand: {mix['reserved']} of {mix['most']} replicas reserved, the rest by the hour, "
            f"{mix['usd_per_day']:.2f} USD a day; all by the hour {mix['usd_per_day_on_demand']:.2f}, all reserved "
            f"{mix['usd_per_day_reserved']:.2f}.")


def _next_change(answer: Data) -> list[str]:
    best = next(iter(answer["changes"]), None)
    if best is not None and best["per_dollar_gain_pct"] is None:
        return [f"With {best['change']} no limit breaks at any rate."]
    if best is None or best["per_dollar_gain_pct"] < WORTH_PCT:
        return ["No single change of the settings carries 2 % more traffic per dollar."]
    note = f" ({best['note']})" if best["note"] else ""
    return [
        f"The next change that pays most: {best['change']}, {best['per_dollar_gain_pct']:.0f} % more traffic "
        f"per dollar at the wall{note}."
    ]


def _no_answer(data: Data) -> list[str]:
    lines = ["No fleet among the candidates meets the service levels."]
    near = data["nearest"]
    if near:
        value, limit = (
            level_value({"name": near["binding"], "v": near["value"]}, "v"),
            level_value({"name": near["binding"], "v": near["limit"]}, "v"),
        )
        lines.append(f"What stands in the way: {near['binding']}, {value} against {limit} ({near['label']}).")
        if near["traffic_share"]:
            lines.append(
                f"Nearest that does: {_nearest_fleet(near)} {verb(near['replicas'], 'carries', 'carry')} "
                f"{100 * near['traffic_share']:.0f} % of the traffic. That is the cap on replicas, not an answer."
            )
        else:
            lines.append(
                f"Nearest that does: a limit of {value} for {near['binding']}, reached by "
                f"{near['label']} nearly idle."
            )
    return lines + stopped_lines(data)


def _nearest_fleet(near: Data) -> str:
    return replica_words(near) if near.get("beside") else f"{replicas_text(near['replicas'])} of {near['label']}"


def plan_tables(data: Data) -> Iterator[Any]:
    """What `servecast plan` prints."""
    asked = data["question"]
    yield Text(
        f"{data['name']}: {rate_words(asked['requests_per_s'], asked['asked_per_s'])}, {asked['prompt_mean']:,.0f} "
        f"prompt and {asked['output_mean']:,.0f} output tokens, {asked['model']}",
        style="bold",
    )
    for line in answer_lines(data):
        yield Text(line)
    yield _candidates(data)
    if any(each["status"] == "feasible" for each in data["candidates"]):
        yield Text("In brackets: replicas needed if steps take less or more time by the profile's error.")
    answer = data["answer"]
    if answer:
        if answer["growth"]:
            yield table(
                "More traffic, same configuration",
                ("traffic", "replicas", "USD/h"),
                [
                    (
                        f"{g['factor']:g}x",
                        counted(g) if g["replicas"] else g["status"],
                        f"{g['usd_per_hour']:.2f}" if g["usd_per_hour"] else "-",
                    )
                    for g in answer["growth"]
                ],
            )
        if answer["sensitivity"]:
            yield table("What the cost hangs on, by the highest rate that keeps every limit",
                        ("input", "cost of the traffic, and about how many replicas to buy for it"),
                        [(row["input"], ends_text(row)) for row in answer["sensitivity"]])  # fmt: skip
            yield Text("Replica counts include the margin for the profile's error. For step time itself, see the range "
                       "in brackets above.")
        if answer["hourly"]:
            day = answer["hourly"]
            yield Text(
                f"Resized every hour: {day['saving_pct']:.0f} % fewer replica hours, "
                f"{day['usd_per_day_saved']:.2f} USD a day.{mix_words(day)}"
            )
    yield from export_texts(data["export"])


def export_texts(export: Data) -> Iterator[Text]:
    """export_lines for the screen: what is to be typed in is not wrapped."""
    for line in export_lines(export):
        typed = line == export.get("command")
        yield Text(line, no_wrap=typed, overflow="ignore" if typed else None)


def export_lines(export: Data) -> list[str]:
    """The command and what to know of it, or why there is none."""
    if "reason" in export:
        return [f"No command to start it with: {export['reason']}."]
    return [export["command"], *map(sentence, export["notes"])] if export else []


def _candidates(data: Data) -> Table:
    fleets = {f["label"]: f for f in [data["recommended"], *data["runners_up"]] if f}
    rows = []
    for o in sorted(data["candidates"], key=lambda o: list(fleets).index(o["label"]) if o["label"] in fleets else 999):
        f = fleets.get(o["label"])
        if f:
            rows.append(
                (
                    o["label"],
                    o["status"],
                    f"{counted(f)} ({counted_range(f)})",
                    str(f["gpus"]),
                    f"{f['usd_per_hour']:.2f}",
                    "; ".join(f"{level['name']} {level_value(level, 'value')}" for level in f["levels"]),
                )
            )
        else:
            rows.append((o["label"], o["status"], "-", "-", "-", o["reason"]))
    return table("Candidates", ("candidate", "", "replicas", "GPUs", "USD/h", "service levels, or why not"), rows)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A rich table, numbers to the right."""
    made = Table(title=title, title_justify="left", min_width=min(len(title), 100))
    for name in columns:
        made.add_column(name, justify="right" if name in ("replicas", "GPUs", "USD/h") else "left")
    for row in rows:
        made.add_row(*map(glued, row))
    return made
