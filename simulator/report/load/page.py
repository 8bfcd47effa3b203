"""Load tests and capacities as folders: JSON, CSV, the picture and one self-contained page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from simulator.report.folder import new_folder
from simulator.report.load.picture import curve_figure, panel_figures
from simulator.report.load.words import (
    COLUMNS,
    a_gpu,
    capacity_lines,
    cell_text,
    csv_text,
    growths_shown,
    load_lines,
    offered_text,
    served_line,
    span_line,
    step_rows,
)
from simulator.report.render import render
from simulator.report.sections import not_modelled
from simulator.report.svg import Picture, to_png, to_svg
from simulator.report.trusted import trusted_lines
from simulator.report.write import json_text
from simulator.text import gain, level_value, number, seconds

Data = Mapping[str, Any]
CAPTION = (
    "Latency against throughput: every point is a run; filled ones are stable, hollow ones are not; blue is the "
    "median, orange p99. Where a curve turns up, more traffic buys waiting instead of tokens."
)
CAPTION_MEASURED = CAPTION.replace("hollow ones are not;", "hollow ones are not, diamonds are measured;")


def write_load(data: Data, out: Path, png: bool = False) -> None:
    """load.json, load.csv, the curve and report.html in `out`, whole or not at all."""
    picture = Picture(curve_figure(data))
    page = render_load(data)
    with new_folder(out) as folder:
        (folder / "load.json").write_text(json_text(data), encoding="utf-8")
        (folder / "load.csv").write_text(csv_text(data["points"]), encoding="utf-8")
        content = to_png(picture.figure) if png else picture.svg.encode()
        (folder / f"curve.{'png' if png else 'svg'}").write_bytes(content)
        (folder / "report.html").write_text(page, encoding="utf-8")


def render_load(data: Data) -> str:
    """The page of a load test."""
    carries = next((row for row in data["points"] if row[data["axis"]] == data["carries"]), None)
    return render(
        "load.html",
        title=f"{data['name']}: load test",
        data=data,
        answer=load_lines(data),
        served=served_line(data),
        verdict="stable" if carries else "overloaded",
        columns=COLUMNS,
        cell_text=cell_text,
        offered_text=offered_text,
        cards=_cards(carries, data) if carries else [],
        pictures=[Markup(to_svg(fig, f"{data['name']}: {title}", f"curve{k}-"))
                  for k, (title, fig) in enumerate(panel_figures(data))],
        caption=CAPTION_MEASURED if data.get("measured") else CAPTION,
        trusted=trusted_lines(data.get("trust")),
        not_modelled=not_modelled(),
    )


def _cards(row: Data, data: Data) -> list[tuple[str, str, str]]:
    what = "requests/s" if data["axis"] == "rate" else "clients"
    return [
        ("stable up to", f"{row[data['axis']]:g} {what}", f"{number(row['requests_per_s'])} served a second"),
        ("output tokens/s", number(row["output_tokens_per_s"]),
         f"{number(a_gpu(row, data))} a GPU"),
        ("TTFT p99 there", seconds(row["ttft_p99_s"]), f"median {seconds(row['ttft_p50_s'])}"),
        ("TPOT p99 there", seconds(row["tpot_p99_s"]), f"median {seconds(row['tpot_p50_s'])}"),
    ]  # fmt: skip


def write_capacity(data: Data, out: Path) -> None:
    """capacity.json, steps.csv and report.html in `out`, whole or not at all."""
    page = render_capacity(data)
    with new_folder(out) as folder:
        (folder / "capacity.json").write_text(json_text(data), encoding="utf-8")
        rows = [{k: v for k, v in step.items() if k != "months"} |
                {f"months_at_{g}_pct": m for g, m in step["months"].items()} for step in data["steps"]]
        if rows:
            (folder / "steps.csv").write_text(csv_text(rows), encoding="utf-8")
        (folder / "report.html").write_text(page, encoding="utf-8")


def render_capacity(data: Data) -> str:
    """The page of a capacity."""
    return render(
        "capacity.html",
        title=f"{data['name']}: capacity",
        data=data,
        answer=capacity_lines(data),
        steps=step_rows(data),
        spans=span_line(data),
        growths=growths_shown(data),
        gain=gain,
        level_value=level_value,
    )
