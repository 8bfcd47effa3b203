"""Other ways to run the recommended fleet (autoscaled, partly spot), and what its cost hangs on."""

from collections.abc import Mapping
from typing import Any

from simulator.report.plan.adapters import adapter_rows
from simulator.report.plan.forest import Bar, forest
from simulator.text import level_value, number, replicas_text, restarted

Data = Mapping[str, Any]
NAMES = {"hpa": "Kubernetes' HPA", "keda": "KEDA"}
UNITS = {"requests": "requests a replica", "running": "running requests a replica", "waiting": "waiting requests a "
         "replica", "kv": "of the KV blocks held", "ttft": "s mean time to first token"}  # fmt: skip


def alternative_lines(answer: Data | None) -> list[str]:
    """What autoscaling and spot capacity would do to the cost, where the plan asks."""
    if not answer:
        return []
    return [line for line in (_scaled(answer["autoscaled"]), _spot(answer["spot"])) if line]


def _scaled(row: Data | None) -> str:
    if row is None:
        return ""
    name = NAMES[row["formula"]]
    if row["forecast"]:
        name = f"the Predictive Horizontal Pod Autoscaler with the formula of {name}"
    if not row["holds"]:
        return (f"Autoscaled by {name} it does not keep the limits at any target that was tried, with "
                f"{row['start_s']:g} s to start a replica: {row['reason']}.")  # fmt: skip
    hours = f"{row['replica_hours']:.3g} replica hours against {row['fixed_replica_hours']:.3g}"
    rest = (f"{row['usd_per_hour']:.2f} USD/h on average, {row['saving_pct']:.0f} % less" if row["saving_pct"] > 0
            else f"{-row['saving_pct']:.0f} % more than the fixed fleet, which is the cheaper")  # fmt: skip
    return (f"Autoscaled by {name} to {number(row['target'])} {UNITS[row['metric']]}, {row['min']} to "
            f"{row['most']} replicas that take {row['start_s']:g} s to start, it keeps every limit too: {hours}, "
            f"{rest}.{_loss(row['loss'])}")  # fmt: skip


def _loss(lost: Data | None) -> str:
    """The loss of replicas that an autoscaled fleet stands."""
    if lost is None:
        return ""
    seen = ", ".join(f"{level['name']} {level_value(level, 'value')}" for level in lost["levels"])
    return (f" In the {lost['after_s']:g} s after the loss of {lost['replicas']} in its busiest time, when "
            f"{restarted(lost['restarted'])}, and with the margin on step times: {seen}.")  # fmt: skip


def _spot(row: Data | None) -> str:
    if row is None:
        return ""
    if not row["holds"]:
        return f"No cheaper fleet with spot replicas keeps the limits: {row['reason']}."
    owned = f"{replicas_text(row['owned'])} on demand and " if row["owned"] else ""
    return (f"With {owned}{row['spot']} on spot capacity, each taken back {row['reclaims_per_hour']:g} times an hour, "
            f"it keeps every limit too: {row['usd_per_hour']:.2f} USD/h, {row['saving_pct']:.0f} % less.")  # fmt: skip


def alternative_rows(data: Data) -> list[dict[str, str]]:
    """The fixed fleet and the others, a row each; empty where the plan asks for no other."""
    best, answer = data["recommended"], data["answer"]
    if not best or not answer or not (answer["autoscaled"] or answer["spot"] or answer["adapters"]):
        return []
    rows = [{"fleet": f"fixed: {replicas_text(best['replicas'])}", "usd": f"{best['usd_per_hour']:.2f}", "saving": "–",
             "levels": _levels(best)}]  # fmt: skip
    for row, name in ((answer["autoscaled"], "autoscaled"), (answer["spot"], "spot")):
        if not row:
            continue
        what = f"autoscaled: {row['min']} to {row['most']} replicas" if name == "autoscaled" else (
            f"{row['owned']} on demand, {row['spot']} spot" if row["holds"] else "partly spot")  # fmt: skip
        if row["holds"]:
            if row.get("loss"):
                what += f", {row['loss']['replicas']} may fail"
            rows.append({"fleet": what, "usd": f"{row['usd_per_hour']:.2f}", "saving": f"{row['saving_pct']:.0f} %",
                         "levels": _levels(row)})  # fmt: skip
        else:
            rows.append({"fleet": what, "usd": "–", "saving": "–", "levels": row["reason"]})
    return rows + adapter_rows(answer["adapters"], best["usd_per_hour"])


def _levels(row: Data) -> str:
    return "; ".join(f"{level['name']} {level_value(level, 'value')}" for level in row["levels"])


def tornado(rows: list[Data]) -> str:
    """Cost a unit of traffic as a factor of the plan's, at both ends of each input's range."""
    bars = []
    for row in rows:
        costs = [end["cost"] for end in (row["down"], row["up"]) if end and end["cost"]]
        if costs:
            bars.append(Bar(f"{row['input']} {_size(row)}", min(1.0, *costs), max(1.0, *costs), None, ends_text(row),
                            "var(--good)", "var(--bad)"))  # fmt: skip
    return forest(bars, "what the cost hangs on", "cost of carrying the traffic, against the plan's")


def _size(row: Data) -> str:
    return f"±{row['size_pct']:.3g} %" if row["up"] else f"−{row['size_pct']:.3g} %"


def end_text(end: Data | None) -> str:
    """`+16 %, 4 replicas`; `no rate does`."""
    if end is None:
        return "–"
    if end["cost"] is None:
        return "no rate meets the limits"
    change = f"{100 * (end['cost'] - 1):+.0f} %".replace("-0 %", "0 %").replace("+0 %", "0 %")
    if end["replicas"] is None:
        return change
    return f"{change}, {replicas_text(end['replicas'])}"


def ends_text(row: Data) -> str:
    """Both ends in words."""
    up = f"; {row['size_pct']:.3g} % more: {end_text(row['up'])}" if row["up"] else ""
    return f"{row['size_pct']:.3g} % less: {end_text(row['down'])}{up}"


def sensitivity_lines(answer: Data) -> list[str]:
    """The two inputs, beside the price itself, that move the cost most, and those that break the plan."""
    rows = [row for row in answer["sensitivity"] if row["input"] != "price"]
    if not rows:
        return []
    price = "The" if len(rows) == len(answer["sensitivity"]) else "Besides the price, the"
    most = " and ".join(f"{row['input']} ({ends_text(row)})" for row in rows[:2])
    broken = [f"{row['input']} {_signed(row, end)}" for row in rows for end in (row["down"], row["up"])
              if end and not end["does"]]  # fmt: skip
    breaks = f" With {' or '.join(broken)} this fleet is too small." if broken else ""
    return [f"{price} cost hangs most on {most}; replicas are about those to buy, with the margin on step times."
            f"{breaks}"]  # fmt: skip


def _signed(row: Data, end: Data) -> str:
    return f"{'+' if end['factor'] > 1 else '−'}{row['size_pct']:.3g} %"
