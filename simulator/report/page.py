"""One self-contained HTML report of a result, or of several side by side: a string, no file is touched.

Answer first, then evidence, assumptions and provenance. Nothing is fetched and no script runs; pictures are
inline SVG, every other value is escaped by the template engine. Equal results give equal bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml
from markupsafe import Markup

from simulator.metrics.readings import VERDICTS
from simulator.report.compared import DIVERGES, STARRED, Cell, compared, overloaded
from simulator.report.facts import LATENCIES, answer, cards, classes, pools, runs_out, setting, verdict
from simulator.report.plots import PARTS, pictures, time_shares
from simulator.report.render import render
from simulator.report.sections import (
    assumptions,
    components,
    definitions,
    engine_rows,
    memory_rows,
    memory_use,
    not_modelled,
    work_rows,
)
from simulator.report.slots import label_of, labels_of
from simulator.report.svg import Picture
from simulator.run import Result
from simulator.text import seconds

CAPTIONS: Final = {
    "fleet": "The fleet over time: replicas ordered, serving, ending their last requests and down; what an autoscaler "
    "read, if there is one; who waited; targets met; cost.",
    "slots": "Who held which slot when. Time runs to the right, a row is a slot, a colour a request; grey is "
    "capacity nobody used. Of prefill and decode pools the busiest replica each, a request in one colour at both.",
    "journeys": "Requests on their way. Time runs to the right, a row is a request: where it waited, had its prompt "
    "computed, and was answered.",
    "memory": "KV memory over time: what each request has filled, and what is reserved for it and empty.",
    "load": "Requests running and waiting, and KV memory in use: mean of each time bin, shaded to its peak.",
    "latency": "Share of requests (ITL: of gaps) at or below a latency. Dots mark p50 and p99. Requests "
    "refused or unfinished count as never answered: such a curve ends below 100 %.",
    "reuse": "What the prefix cache found, and what more KV memory would give. Left: share of the prompt tokens that a "
    "memory of any size would find and need not compute, requests coming one at a time and the least recently used "
    "blocks dropped first; the dot is this run. Right: what this run found, over time.",
    "time": "Where the GPUs' time goes, from the first arrival to the last token.",
    "compare": "The scenarios side by side; a dash means not defined.",
}


def render_report(results: Result | Sequence[Result], drawn: dict[str, Picture] | None = None) -> str:
    """The report as one HTML page: of one result, or a comparison when given several.

    `drawn`: their pictures (plots.pictures), where they are at hand.
    """
    if not isinstance(results, Result) and len(results) == 1:
        results = results[0]
    if isinstance(results, Result):
        return render("report.html", **_single(results, drawn or pictures(results)))
    if not results:
        raise ValueError("render_report needs at least one result")
    return render("compare.html", **_several(results, drawn or pictures(results)))


def _pictures(drawn: dict[str, Picture], name: str) -> list[dict[str, Any]]:
    """SVG, caption and width class of each picture; ids are made unique in the page by a prefix."""
    return [
        {
            "name": key,
            "caption": CAPTIONS[key],
            "wide": key in ("fleet", "slots", "journeys", "memory") or picture.wide,
            "svg": Markup(picture.in_page(f"{name}: {CAPTIONS[key]}", f"{key}-")),
        }
        for key, picture in drawn.items()
    ]


def _single(result: Result, drawn: dict[str, Picture]) -> dict[str, Any]:
    name = label_of(result.scenario.name, 120)
    return {
        "title": name,
        "result": facts(result),
        "pictures": _pictures(drawn, name),
        "not_modelled": not_modelled(),
    }


def _several(results: Sequence[Result], drawn: dict[str, Picture]) -> dict[str, Any]:
    names, rows = labels_of(results), compared(results)
    return {
        "title": "Comparison: " + ", ".join(names),
        "names": names,
        "rows": rows,
        "starred": STARRED,
        "diverging": [name for name, result in zip(names, results, strict=True) if overloaded(result.summary)],
        "diverges": DIVERGES,
        "answer": _best(results, names, dict(rows)),
        "results": [facts(result) for result in results],
        "pictures": _pictures(drawn, "comparison"),
        "not_modelled": not_modelled(),
    }


def facts(result: Result) -> dict[str, Any]:
    """Everything the templates show of one result, as plain text and rows."""
    summary, words = result.summary, definitions(result.summary)
    shares = time_shares(summary, result.scenario.cluster.size)
    return {
        "name": label_of(result.scenario.name, 120),
        "description": result.scenario.description,
        "setting": setting(result),
        "verdict": verdict(summary),
        "runs_out": runs_out(result),
        "answer": answer(result),
        "cards": cards(result),
        "summary": summary,
        "latencies": [(key, label, summary[key], words.get(key, "")) for key, label in LATENCIES],
        "classes": classes(summary),
        "pools": pools(summary),
        "work": work_rows(result),
        "memory_use": memory_use(summary),
        "memory": memory_rows(result),
        "time": [(label, shares[key]) for key, label in (*PARTS, ("idle", "idle")) if key != "copy_s" or shares[key]],
        "assumptions": assumptions(result),
        "components": components(result),
        "engine_rows": engine_rows(result),
        "definitions": words,
        "provenance": _flat(summary["provenance"]),
        "yaml": yaml.safe_dump(summary["scenario"], sort_keys=False, allow_unicode=True, width=100),
    }


def _flat(data: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested mappings as (dotted key, text) rows."""
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        rows += (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", str(value))]
        )
    return rows


def _best(results: Sequence[Result], names: Sequence[str], cells: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Plain sentences: who is best at what, against the first; `cells` by line (report.compared)."""
    lines = []
    rates = [result.summary["throughput"]["output_tokens_per_s"] or 0.0 for result in results]
    k = max(range(len(rates)), key=rates.__getitem__)
    ratio = f", {rates[k] / rates[0]:.3g} times that of {names[0]}" if k and rates[0] else ""
    if rates[k] <= 1.01 * min(rates):
        lines.append(f"All deliver the same, {rates[k]:,.0f} output tokens/s within 1 %.")
    else:
        lines.append(f"{names[k]} delivers the most: {rates[k]:,.0f} output tokens/s{ratio}.")
    for key, short, label in (("ttft_s", "TTFT", "TTFT"), ("e2e_s", "E2E", "end-to-end latency")):
        known = [
            (result.summary[key]["p99"], name)
            for result, name in zip(results, names, strict=True)
            if result.summary[key]["p99"] is not None and not overloaded(result.summary)
        ]
        least, most = (min(known), max(known)) if known else (None, None)
        if least and most and (len(known) == 1 or any(cell.best for cell in cells[f"{short} p99"])):
            lines.append(f"Lowest p99 {label}: {least[1]} with {seconds(least[0])}.")
        elif least and most:
            lines.append(f"p99 {label}: {seconds(least[0])} to {seconds(most[0])}, which may be chance.")
    by_verdict = {verdict: [name for result, name in zip(results, names, strict=True)
                            if result.summary["banner"]["verdict"] == verdict] for verdict in reversed(VERDICTS[1:])}
    return lines + [f"{verdict.capitalize()}: {', '.join(own)}." for verdict, own in by_verdict.items() if own]
