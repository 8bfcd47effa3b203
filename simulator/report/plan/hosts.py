"""The recommended fleet of a plan on the other hosts, in a sentence."""

from collections.abc import Mapping
from typing import Any

from simulator.report.load.words import LEARN
from simulator.text import counted, joined, sentence, verb

Data = Mapping[str, Any]


def host_lines(answer: Data) -> list[str]:
    """How many replicas the other hosts take; empty where the plan has a host of its own."""
    own = next((row for row in answer["hosts"] if row["planned"]), None)
    others = [row for row in reversed(answer["hosts"]) if not row["planned"]]
    if own is None or not others:
        return []
    if all(row["replicas"] == own["replicas"] for row in others):
        places = joined([f"the {row['host']}" for row in others])
        return [f"The host's CPU does not change the number: {_replicas(own)} on {places} "
                f"{verb(len(others), 'host', 'hosts')} too."]
    said = "; ".join(_said(row, own) for row in others)
    return [f"{sentence(said)} {LEARN}"]


def _said(row: Data, own: Data) -> str:
    """`on the slow host: 6 replicas instead of 4`."""
    place = f"on the {row['host']} host"
    if row["replicas"] is None:
        other = f"another kind may be: --set host={row['host']}"
        return f"{place} no fleet of this kind is enough ({row['reason']}), {other}"
    if row["replicas"] == own["replicas"]:
        return f"{place} {counted(row)} as well"
    return f"{place} {_replicas(row)} instead of {counted(own)} ({row['usd_per_hour']:.2f} USD/h)"


def _replicas(row: Data) -> str:
    return f"{counted(row)} {verb(row['replicas'], 'replica', 'replicas')}"
