"""A sweep as JSON: the answer, the best points, the grid of two keys and what failed (schema `sweep`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from simulator.atomic import atomic
from simulator.report.write import json_text
from simulator.sweep.page import answer, sound_points
from simulator.sweep.show import best_points
from simulator.version import schema_of

MOST_ERRORS: Final = 10


def plain(name: str, frame: pd.DataFrame, means: pd.DataFrame, keys: Sequence[str], metric: str,
          grid: pd.DataFrame | None, folded: Sequence[str], count: int, said: Sequence[str] = ()) -> dict[str, Any]:
    """`frame`, `means` and `grid` as from sweep.show; the `count` best points; `said` says what is not finished."""
    failed, sound = frame[frame["error"].notna()], sound_points(means)
    verdicts = means["verdict"].replace("", "failed").value_counts()
    return {
        "schema": schema_of("sweep"),
        "name": name,
        "metric": metric,
        "keys": list(keys),
        "points": len(means),
        "rows": len(frame),
        "failed": len(failed),
        "replications": int(frame["replication"].nunique()),
        "complete": not said,
        "answer": [*answer(means, keys, metric), *said],
        "verdicts": {str(verdict): int(number) for verdict, number in verdicts.items()},
        "best": None if sound.empty else _points(best_points(sound, metric, 1), keys)[0],
        "top": _points(best_points(means, metric, count), keys),
        "grid": None if grid is None else _grid(grid, folded),
        "errors": [{"point": int(row["point"]), "replication": int(row["replication"]), "error": str(row["error"])}
                   for row in failed.head(MOST_ERRORS).to_dict("records")],
    }  # fmt: skip


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write it, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(json_text(data), encoding="utf-8")


def _points(rows: pd.DataFrame, keys: Sequence[str]) -> list[dict[str, Any]]:
    return [{"point": int(row["point"]), "values": {key: _value(row[key]) for key in keys}, "mean": _value(row["mean"]),
             "standard_error": _value(row["sem"]), "verdict": str(row["verdict"]), "failed": int(row["failed"])}
            for row in rows.to_dict("records")]  # fmt: skip


def _grid(grid: pd.DataFrame, folded: Sequence[str]) -> dict[str, Any]:
    return {"across": str(grid.columns.name), "down": str(grid.index.name), "best_over": list(folded),
            "columns": [_value(value) for value in grid.columns], "lines": [_value(value) for value in grid.index],
            "values": [[_value(cell) for cell in line] for line in grid.to_numpy(dtype=float)]}  # fmt: skip


def _value(value: Any) -> Any:
    """A swept value or a mean without numpy's types; null where there is none, or no finite one."""
    if value is None or value is pd.NA:
        return None
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
