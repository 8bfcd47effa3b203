"""A day paid for in three ways (reserved, by the hour, on spot capacity), in words and as a table."""

from collections.abc import Mapping
from typing import Any

from simulator.text import joined, replicas_text

Data = Mapping[str, Any]


def purchase_lines(answer: Data | None) -> list[str]:
    """What to reserve, to rent by the hour and to take on spot capacity; nothing where the plan does not ask."""
    found = _found(answer)
    if found is None:
        return []
    *others, best = found["ways"]
    parts = [f"{replicas_text(best['reserved'])} reserved"]
    parts += [f"up to {best[key]} {name}" for key, name in (("on_demand", "by the hour"), ("spot", "on spot capacity"))
              if best[key]]  # fmt: skip
    none = "" if best["spot"] else " (no spot replica pays beside them)"
    beside = ", ".join(f"{way['way']} {way['usd_per_day']:.2f}" for way in others)
    cost = f"{best['usd_per_day']:.2f} USD a day"
    return [f"Resized every hour and paid for in three ways: {joined(parts)}, {cost}{none}; {beside}."]


def purchase_rows(data: Data) -> list[dict[str, str]]:
    """The fixed fleet and each way to pay for one resized by the hour, a row each."""
    found = _found(data["answer"])
    if found is None:
        return []
    fixed = data["recommended"]["usd_per_hour"] * 24
    rows = [{"way": "on demand, not resized", "reserved": "–", "on_demand": str(data["recommended"]["replicas"]),
             "spot": "–", "on_demand_hours": "", "spot_hours": "", "usd": f"{fixed:.2f}", "less": "–"}]  # fmt: skip
    for way in found["ways"]:
        rows.append({
            "way": way["way"], "reserved": str(way["reserved"] or "–"),
            **_of_day(way, "on_demand"), **_of_day(way, "spot"), "usd": f"{way['usd_per_day']:.2f}",
            "less": f"{100 * (1 - way['usd_per_day'] / fixed):.0f} %"})  # fmt: skip
    return rows


def _of_day(way: Data, key: str) -> dict[str, str]:
    """`up to 2` and `19 h`, their hours a day."""
    if not way[key]:
        return {key: "–", f"{key}_hours": ""}
    return {key: f"up to {way[key]}", f"{key}_hours": f"{way[f'{key}_hours']:.3g} h"}


def _found(answer: Data | None) -> Data | None:
    day = answer["hourly"] if answer else None
    found: Data | None = day["purchases"] if day else None
    return found
