"""The page of a sweep: what is best and sound comes first, what is better but overloaded is said, names are escaped."""

import numpy as np
import pandas as pd

from simulator.sweep.page import answer, order, render_sweep
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
    assert lines[2] == "The next, 900 ms at a z, is more than 3 % off. One replication does not show an order."
    assert lines[3] == "Points: 2 stable, 1 overloaded."


def test_whether_the_order_is_shown_is_said() -> None:
    """Means 1.00 and 1.02 with standard errors of 0.01 and 0.02: the difference has one of 0.022; 1.02 is within two of
    them, 1.20 is not. Without replications 1.02 is within 3 % of 1.00."""
    values = {0: (0.99, 1.01), 1: (1.00, 1.04), 2: (1.19, 1.21)}
    frame = pd.DataFrame([(point, k, "xyz"[point], value, "stable", None) for point, pair in values.items()
                          for k, value in enumerate(pair)],
                         columns=["point", "replication", "a", P99, "banner.verdict", "error"])  # fmt: skip
    means = point_means(frame, ["a"], P99)
    assert order(means, ["a"], P99) == ["Not told apart from it by two standard errors of the difference: a y."]
    assert order(means[means["a"] != "y"], ["a"], P99) == ["The next, 1.2 s at a z, is told apart from it."]
    assert order(means[means["a"] == "x"], ["a"], P99) == []
    _, once = means_of([(0, "x", 1.00, "stable"), (1, "y", 1.02, "stable"), (2, "z", 1.2, "stable")])
    assert order(once, ["a"], P99) == ["Within 3 % of it: a y. One replication does not show an order."]


def test_nothing_sound_is_said() -> None:
    _, means = means_of([(0, "x", np.nan, "stable"), (1, "y", 0.7, "overloaded")])
    assert answer(means, ["a"], P99)[0] == "No point has a finite TTFT p99 and keeps up with its load."


def test_hostile_names_are_text() -> None:
    frame, means = means_of([(0, "<script>alert(1)</script>", 0.5, "stable"), (1, "y", 0.7, "stable")])
    figure = heat_map(grid_of(means, "a", "b", P99), P99)
    page = render_sweep("<img src=x onerror=1>", frame, means, ["a", "b"], P99, figure, 10)
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
