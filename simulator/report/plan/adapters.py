"""LoRA adapters of a plan in words and as rows: what they cost, and a fleet for each of them instead."""

from collections.abc import Mapping
from typing import Any

from simulator.text import number, replicas_text, seconds, several
from simulator.units import GIB

Data = Mapping[str, Any]


def adapter_lines(row: Data | None, cost: float) -> list[str]:
    """What slots and adapters take, and other fleets against the one that costs `cost` USD/h; empty without any."""
    if row is None:
        return []
    lost = row["kv_blocks_without"] - row["kv_blocks"]
    slots = f"{row['max_loras']} slot{'' if row['max_loras'] == 1 else 's'} of rank {row['rank']}"
    longer = row["step_s"] - row["step_s_without"]
    lines = [
        f"Adapters: {slots} take {number(row['slots_bytes'] / GIB)} GiB of each GPU, {lost:,} of "
        f"{row['kv_blocks_without']:,} KV blocks ({100 * lost / row['kv_blocks_without']:.1f} %); a decode step of "
        f"{several(row['sequences'], 'sequence')} takes {seconds(longer)} longer, "
        f"{100 * longer / row['step_s_without']:.0f} %."
    ]
    if row["without"]:
        lines.append(f"Without adapters the same traffic takes {replicas_text(row['without']['replicas'])}, "
                     f"{row['without']['usd_per_hour']:.2f} USD/h.")  # fmt: skip
    if row["apart"]:
        own = row["apart"]
        lines.append(f"A fleet for each of the {several(row['adapters'], 'adapter')}, merged into its weights: "
                     f"{own['fleets']} x {replicas_text(own['each'])}, {several(own['gpus'], 'GPU')}, "
                     f"{own['usd_per_hour']:.2f} USD/h, {_against(own['usd_per_hour'], cost)}.")  # fmt: skip
    elif row["reason"]:
        lines.append(f"No fleet for one adapter alone: {row['reason']}.")
    return lines


def adapter_rows(row: Data | None, cost: float) -> list[dict[str, str]]:
    """The same as rows of other ways to run it."""
    if row is None:
        return []
    rows = []
    apart, without = row["apart"], row["without"]
    if apart:
        fleets = f"a fleet for each of {several(apart['fleets'], 'adapter')}: {replicas_text(apart['replicas'])}"
        rows.append(_row(fleets, apart, cost,
                         f"{apart['each']} each, the adapter merged into the weights; every limit kept"))  # fmt: skip
    if without:
        rows.append(_row(f"no adapters at all: {replicas_text(without['replicas'])}", without, cost,
                         "every limit kept"))  # fmt: skip
    return rows


def _row(what: str, fleet: Data, cost: float, levels: str) -> dict[str, str]:
    change = 100 * (fleet["usd_per_hour"] / cost - 1)
    saving = f"{-change:.0f} %" if change < 0.5 else f"{change:.0f} % more"
    return {"fleet": what, "usd": f"{fleet['usd_per_hour']:.2f}", "saving": saving, "levels": levels}


def _against(usd: float, cost: float) -> str:
    if usd > 1.95 * cost:
        return f"{usd / cost:.1f} times the cost of one fleet for all"
    if abs(usd / cost - 1) < 0.005:
        return "as much as one fleet for all"
    return f"{100 * abs(usd / cost - 1):.0f} % {'more' if usd > cost else 'less'} than one fleet for all"
