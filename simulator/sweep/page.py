"""A sweep as one self-contained page: what is best, how sure, and the heat map of two keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from simulator.atomic import atomic
from simulator.metrics.apart import CLOSE, NEAR_PCT
from simulator.report.render import render
from simulator.report.sections import not_modelled
from simulator.report.svg import Picture
from simulator.report.trusted import short_line, trusted_lines
from simulator.sweep.row import higher_is_better, said_name
from simulator.sweep.show import best_points, short_keys, titled, value_text, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OTHERS = "These are of the base; points of another model, GPU, host or engine may stand on less."
MOST_NAMED = 3
SOUND = ("stable", "undecided")
"""Verdicts with which a point's numbers say something about a longer run."""


def write_page(path: Path, name: str, frame: pd.DataFrame, means: pd.DataFrame, keys: Sequence[str], metric: str,
               figure: "Figure | None", count: int, said: Sequence[str] = (),
               trust: dict[str, Any] | None = None) -> None:
    """Write the page of a sweep, whole or not at all; `figure` as from show.heat_map, None where none is drawn."""
    with atomic(path) as temporary:
        page = render_sweep(name, frame, means, keys, metric, figure, count, said, trust)
        temporary.write_text(page, encoding="utf-8")


def render_sweep(name: str, frame: pd.DataFrame, means: pd.DataFrame, keys: Sequence[str], metric: str,
                 figure: "Figure | None", count: int, said: Sequence[str] = (),
                 trust: dict[str, Any] | None = None) -> str:
    """The page; `said` goes below the answer, `trust` is what the base's step times stand on."""
    best = best_points(means, metric, count)
    failed = frame[frame["error"].notna()]
    rows = [([value_text(row[key]) for key in keys], with_unit(metric, row["mean"]),
             with_unit(metric, row["sem"]), row["verdict"])
            for row in best.to_dict("records")]
    said = [*answer(means, keys, metric), *([f"Base: {short_line(trust)}"] if trust else []), *said]
    return render(
        "sweep.html", title=f"{name}: sweep", metric=said_name(metric), raw=metric, rows=rows,
        keys=[titled(key, short) for key, short in zip(keys, short_keys(keys), strict=True)],
        points=len(means), replications=int(frame["replication"].nunique()), answer=said,
        verdict="overloaded" if sound_points(means).empty else "stable",
        picture=Markup(Picture(figure).in_page(f"{said_name(metric)} over two keys", "heat-")) if figure else "",
        caption="Dark is good; grey: failed, or without a finite value.",
        errors=[(row["point"], row["replication"], str(row["error"])) for row in failed.head(10).to_dict("records")],
        failed=len(failed), trusted=trusted_lines(trust) + ([OTHERS] if trust else []), not_modelled=not_modelled())


def sound_points(means: pd.DataFrame) -> pd.DataFrame:
    """The points that have a value and keep up with their load."""
    return means[means["verdict"].isin(SOUND) & means["mean"].notna()]


def answer(means: pd.DataFrame, keys: Sequence[str], metric: str) -> list[str]:
    """Sentences: the best point that is not overloaded, what is better but not sound, and how many are of each kind."""
    sound = sound_points(means)
    lines = []
    if sound.empty:
        lines.append(f"No point has a finite {said_name(metric)} and keeps up with its load.")
    else:
        row = best_points(sound, metric, 1).to_dict("records")[0]
        lines.append(f"Best {said_name(metric)} of the points that keep up with their load: "
                     f"{with_unit(metric, row['mean'])} at {_point(row, keys)}.")
        known = means[means["mean"].notna()]
        top = best_points(known, metric, 1).to_dict("records")[0]
        if top["point"] != row["point"] and top["mean"] != row["mean"]:
            better, value = "higher" if higher_is_better(metric) else "lower", with_unit(metric, top["mean"])
            lines.append(f"A {better} value, {value} at {_point(top, keys)}, is {top['verdict']}.")
        lines += order(sound, keys, metric)
    counts = means["verdict"].replace("", "failed").value_counts()
    lines.append("Points: " + ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items()) + ".")
    return lines


def order(sound: pd.DataFrame, keys: Sequence[str], metric: str) -> list[str]:
    """Whether the best of `sound` points is told apart from the others: by replications, by how far off without any."""
    first, *others = best_points(sound, metric, len(sound)).to_dict("records")
    if not others:
        return []
    alone = np.isnan(first["sem"])
    if alone:
        near = [row for row in others if abs(row["mean"] - first["mean"]) <= (CLOSE - 1) * abs(first["mean"])]
        why = f"Within {NEAR_PCT} of it"
    else:
        near = [row for row in others if not _apart(first, row)]
        why = "Not told apart from it by two standard errors of the difference"
    following = f"The next, {with_unit(metric, others[0]['mean'])} at {_point(others[0], keys)}, is"
    if near:
        more = f"; {len(near) - MOST_NAMED:,} more" if len(near) > MOST_NAMED else ""
        said = f"{why}: {'; '.join(_point(row, keys) for row in near[:MOST_NAMED])}{more}."
    else:
        said = f"{following} more than {NEAR_PCT} off." if alone else f"{following} told apart from it."
    return [f"{said} One replication does not show an order." if alone else said]


def _apart(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    error = np.hypot(one["sem"], 0.0 if np.isnan(other["sem"]) else other["sem"])
    return bool(abs(one["mean"] - other["mean"]) > 2 * error)


def _point(row: dict[Any, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{name} {value_text(row[key])}" for key, name in zip(keys, short_keys(keys), strict=True))
