"""The page of a sweep: what is best and sound comes first, what is better but overloaded is said, names are escaped."""

import numpy as np
import pandas as pd

from simulator.sweep.page import answer, render_sweep
from simulator.sweep.show import grid_of, heat_map, point_means

P99 = "ttft_s.p99"


def means_of(rows: list[tuple[int, str, float, str]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows, point means) of points (number, key value, TTFT p99, verdict)."""
    frame = pd.DataFrame(rows, columns=["point", "a", P99, "banner.verdict"])
    frame = frame.assign(replication=0, error=None, b=1)
    return frame, point_means(frame, ["a", "b"], P99)


def test_the_best_sound_point_is_named_and_the_overloaded_one_beside_it() -> None:
    _, means = means_of([(0, "x", 0.5, "overloaded"), (1, "y", 0.7, "stable"), (2, "z", 0.9, "stable")])
    lines = answer(means, ["a"], P99)
    assert lines[0].endswith("load: 700 ms at a y.")
    assert lines[1] == "A lower value, 500 ms at a x, is overloaded."
    assert lines[2] == "Points: 2 stable, 1 overloaded."


def test_nothing_sound_is_said() -> None:
    _, means = means_of([(0, "x", np.nan, "stable"), (1, "y", 0.7, "overloaded")])
    assert answer(means, ["a"], P99)[0] == f"No point has a finite {P99} and keeps up with its load."


def test_hostile_names_are_text() -> None:
    frame, means = means_of([(0, "<script>alert(1)</script>", 0.5, "stable"), (1, "y", 0.7, "stable")])
    figure = heat_map(grid_of(means, "a", "b", P99), P99)
    page = render_sweep("<img src=x onerror=1>", frame, means, ["a", "b"], P99, figure, 10)
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
