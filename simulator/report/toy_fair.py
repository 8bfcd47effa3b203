"""`servecast toy --fair`: a tenant with long answers and one with short ones, in order of arrival and by fair shares.

The long answers, above the median, are one tenant's and wait in front; the others are the other tenant's.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulator.errors import ConfigError
from simulator.report.timeline import slot_spans
from simulator.report.toy import EMPTY, SlotPicture, check, letter
from simulator.run import Result, simulate
from simulator.scenario.spec import scenario_from
from simulator.text import several
from simulator.units import NS_PER_S

RULES: Final = (("chunked", "first come, first served"), ("vtc", "fair shares (virtual token counter)"))
TENANTS: Final = ("long", "short")


def toy_fair(lengths: Sequence[int], slots: int = 4) -> RenderableType:
    """Both slot pictures and what each tenant waits. Raises ConfigError where there are not two tenants."""
    check(lengths, slots)
    longs = [n for n in lengths if n > np.median(lengths)]
    shorts = [n for n in lengths if n <= np.median(lengths)]
    if not longs:
        raise ConfigError(f"two tenants need long and short answers, got {list(lengths)}")
    results = [run_fair(longs, shorts, slots, policy) for policy, _ in RULES]
    longest = max(result.summary["steps"] for result in results)
    parts: list[RenderableType] = [Text(
        f"tenant long: {_names(0, len(longs))}, {several(sum(longs), 'token')}; "
        f"tenant short: {_names(len(longs), len(shorts))}, {several(sum(shorts), 'token')}, all waiting at 0\n")]
    for result, (_, title) in zip(results, RULES, strict=True):
        parts += [Text.assemble((title, "bold"), f": {several(result.summary['steps'], 'step')}"),
                  SlotPicture(slot_spans(result), slots, longest), Text()]
    return Group(*parts, _waits(results), Text(f"\nA letter: a request at work; {EMPTY} empty.", style="dim"))


def run_fair(longs: Sequence[int], shorts: Sequence[int], slots: int, policy: str) -> Result:
    """The simulation behind one picture."""
    tenants = [TENANTS[0]] * len(longs) + [TENANTS[1]] * len(shorts)
    scenario = scenario_from({
        "name": "toy", "workload": {"requests": {"output": [*longs, *shorts], "tenant": tenants}},
        "hardware": {"gpu": "unit"}, "policy": {"name": policy, "max_num_seqs": slots},
        "max_model_len": max(longs) + 1})
    return simulate(scenario, "reference", log=True)


def _names(first: int, count: int) -> str:
    return letter(first) if count == 1 else f"{letter(first)} to {letter(first + count - 1)}"


def _waits(results: Sequence[Result]) -> Table:
    """[steps] until the answers of each tenant begin and end, mean."""
    table = Table("", *(title for _, title in RULES), box=None, pad_edge=False)
    for code, tenant in enumerate(TENANTS):
        for name, what in (("scheduled", "waits, mean"), ("last", "answered after, mean")):
            cells = []
            for result in results:
                rows = np.asarray(result.trace.asks.tenant) == code
                cells.append(f"{np.asarray(getattr(result.requests, name))[rows].mean() / NS_PER_S:.4g} steps")
            table.add_row(f"tenant {tenant}: {what}", *cells)
    return table
