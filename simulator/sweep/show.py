"""Reading a sweep: its table, its best points, a heat map of two keys."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape
from rich.table import Table

from simulator.atomic import atomic
from simulator.errors import ConfigError, UnknownNameError
from simulator.metrics.readings import VERDICTS
from simulator.sweep.row import COUNTS, NUMBERS, higher_is_better, said_name
from simulator.sweep.store import part_files, read_manifest, replication_of
from simulator.text import seconds, several, share, verb

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CELLS: Final = 1_000_000
"""Cells of a heat map; two random keys of n points would make n x n."""
MOST_LABELS: Final = 40
"""Labels along an axis."""
RATE_KEYS: Final = ("rate", "rate_scale")
"""Last part of the keys that say how fast requests arrive."""
UNITS: Final = {"rate": "1/s", "rate_scale": "x", "max_num_seqs": "", "max_num_batched_tokens": ""}
"""Unit by the last part of a key whose name does not say it."""
SHARES: Final = ("goodput.attained", "slot_utilization", "gpu_utilization", "kv.mean_use", "kv.peak_use")


def sweep_name(folder: Path) -> str:
    """What a sweep is called, in its file."""
    return str((read_manifest(folder) or {}).get("name") or folder.resolve().name)


def sweep_keys(folder: str | Path) -> list[str]:
    """Keys a sweep varies. Raises ConfigError when `folder` holds no sweep."""
    manifest = read_manifest(Path(folder))
    if manifest is None:
        raise ConfigError(f"{folder}: holds no sweep (no manifest.json)")
    return list(manifest["keys"])


def trust_of(folder: Path) -> dict[str, Any] | None:
    """What the base's step times stand on, where the sweep says so."""
    found: dict[str, Any] | None = (read_manifest(Path(folder)) or {}).get("trust")
    return found


def unfinished(folder: str | Path, frame: pd.DataFrame) -> list[str]:
    """How much of a sweep is there, where that is not all of it."""
    rows = int((read_manifest(Path(folder)) or {}).get("rows", 0))
    if len(frame) >= rows:
        return []
    return [f"{len(frame):,} of {several(rows, 'row')} {verb(len(frame), 'is', 'are')} done: this is the best so far, "
            "not the answer. Go on with --resume."]


def load_table(folder: str | Path) -> pd.DataFrame:
    """All finished rows: point, replication, the swept keys, metrics, error; sorted by point and replication.

    Raises ConfigError when there is no sweep, or nothing of it is finished.
    """
    sweep_keys(folder)
    parts = part_files(Path(folder))
    if not parts:
        raise ConfigError(f"{folder}: no row of the sweep is finished yet")
    frame: pd.DataFrame = pa.concat_tables([_part(path) for path in parts], promote_options="default").to_pandas()
    return frame.sort_values(["point", "replication"], ignore_index=True)


def point_means(frame: pd.DataFrame, keys: list[str], metric: str) -> pd.DataFrame:
    """One row a point: its keys, `mean` and standard error `sem` of a metric over replications, `failed`.

    A replication without the metric (failed, or a percentile that is infinite) makes the point's mean NaN:
    the mean of the rest would flatter it. `sem` is NaN below two replications. Raises UnknownNameError.
    """
    if metric not in (*COUNTS, *NUMBERS):
        raise UnknownNameError("metric", metric, (*COUNTS, *NUMBERS))
    said = "banner.verdict" if "banner.verdict" in frame.columns else "stability.verdict"  # older sweeps have no banner
    ranks = frame[said].map({verdict: k for k, verdict in enumerate(VERDICTS)}).fillna(-1).astype(int)
    worst = ranks.groupby(frame["point"], sort=True).max().map(dict(enumerate(VERDICTS)) | {-1: ""})
    groups = frame.groupby("point", sort=True)
    values = groups[metric]
    mean = values.mean().where(values.count() == groups.size())
    table = groups[keys].first()
    return table.assign(mean=mean, sem=values.sem(), failed=groups["error"].count(),
                        verdict=worst).reset_index()


def best_points(means: pd.DataFrame, metric: str, count: int) -> pd.DataFrame:
    """The `count` best rows of point_means; points without a mean come last."""
    ascending = [not higher_is_better(metric), True]
    ordered = means.sort_values(["mean", "point"], ascending=ascending, na_position="last")
    return ordered.head(count)


def short_keys(keys: Sequence[str]) -> list[str]:
    """Keys by their last part where no other has it: `max_num_seqs` for `policy.max_num_seqs`."""
    last = [key.rpartition(".")[2] for key in keys]
    return [short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)]


def titled(name: str, shown: str = "") -> str:
    """A key, or what is `shown` of it, with its unit: `rate [1/s]`."""
    last = name.rpartition(".")[2]
    unit = UNITS.get(last, "s" if last.endswith("_s") and "." in name else "")
    return f"{shown or name} [{unit}]" if unit else shown or name


def with_unit(metric: str, value: Any) -> str:
    """A value of a metric: a time and a share with their unit, else a number, whose unit its heading has."""
    if value is None or np.isnan(value):
        return "-"
    if _is_time(metric):
        return seconds(float(value))
    return share(float(value)) if metric in SHARES else number_text(value)


def _is_time(metric: str) -> bool:
    return metric.partition(".")[0].endswith("_s")


def best_table(best: pd.DataFrame, keys: list[str], metric: str) -> Table:
    """best_points for the screen."""
    table = Table(title=f"best points by {said_name(metric)} ({metric})", title_justify="left")
    headed = [titled(key, short) for key, short in zip(keys, short_keys(keys), strict=True)]
    value = said_name(metric).replace(" ", "\n", 1)
    for name in ("point", *headed, value, "standard\nerror", "verdict", "failed"):
        table.add_column(escape(name), justify="left" if name in ("verdict", *headed) else "right", overflow="fold")
    for row in best.to_dict("records"):
        cells = [row["point"], *(row[key] for key in keys), with_unit(metric, row["mean"]),
                 with_unit(metric, row["sem"]), row["verdict"], row["failed"] or ""]
        table.add_row(*(escape(value_text(cell)) for cell in cells))
    return table


def errors_table(frame: pd.DataFrame, limit: int = 10) -> Table | None:
    """Failed rows with their errors, None when none failed."""
    failed = frame[frame["error"].notna()]
    if failed.empty:
        return None
    table = Table("point", "replication", "error", title=f"{len(failed)} failed rows", title_justify="left")
    for row in failed.head(limit).to_dict("records"):
        table.add_row(str(row["point"]), str(row["replication"]), escape(str(row["error"])))
    return table


def grid_of(means: pd.DataFrame, x: str, y: str, metric: str) -> pd.DataFrame:
    """Mean of a metric by two keys (rows y, columns x); over other keys the best value counts."""
    for key in (x, y):
        if key not in means.columns:
            raise ConfigError(f"{key} is not swept; swept: {', '.join(_swept(means))}")
    if x == y:
        raise ConfigError(f"--keys needs two different keys, got {x} twice")
    if not fits(means, x, y):
        raise ConfigError(f"--keys {x},{y}: a heat map of {means[x].nunique():,} x {means[y].nunique():,} cells; "
                          f"accepted: keys with at most {MOST_CELLS:,} cells")
    cells = means.groupby([y, x])["mean"]
    best = cells.max() if higher_is_better(metric) else cells.min()
    return best.unstack(x)


def fits(means: pd.DataFrame, x: str, y: str) -> bool:
    """Whether a heat map of the two keys has at most MOST_CELLS cells."""
    return int(means[x].nunique() * means[y].nunique()) <= MOST_CELLS


def heat_keys(swept: Sequence[str]) -> tuple[str, str] | None:
    """The two keys to draw where none are named: a swept rate across, the first other key down; None below two."""
    ordered = sorted(swept, key=lambda key: key.rpartition(".")[2] not in RATE_KEYS)
    return (ordered[0], ordered[1]) if len(ordered) > 1 else None


def folded_keys(means: pd.DataFrame, x: str, y: str) -> list[str]:
    """Keys of more than one value that grid_of takes the best over."""
    return [key for key in _swept(means) if key not in (x, y) and means[key].nunique(dropna=False) > 1]


def grid_table(grid: pd.DataFrame, metric: str, folded: Sequence[str] = ()) -> Table:
    """The heat map as numbers; `folded` are the keys it is the best over."""
    down, across, *best_over = _short(grid, folded)
    title = f"{_heading(metric, best_over)}: {down} down, {across} across"
    table = Table(title=escape(title), title_justify="left")
    table.add_column(escape(down))
    for value in grid.columns:
        table.add_column(escape(value_text(value)), justify="right")
    for value, row in zip(grid.index, grid.to_numpy(), strict=True):
        table.add_row(escape(value_text(value)), *(with_unit(metric, cell) for cell in row))
    return table


def heat_map(grid: pd.DataFrame, metric: str, folded: Sequence[str] = ()) -> "Figure":
    """The grid in colours; dark is good, grey is undefined (failed, or no finite value); `folded` as in grid_table."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    rows, columns = grid.shape
    size = (min(14.0, 3.2 + 0.62 * columns), min(10.0, 1.9 + 0.42 * rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["viridis_r" if higher_is_better(metric) else "viridis"].with_extremes(bad="0.85")
    values = np.ma.masked_invalid(grid.to_numpy(dtype=float))
    image = axes.imshow(values, aspect="auto", cmap=colours, origin="lower", norm=_scale(values))
    across, down = range(0, columns, 1 + columns // MOST_LABELS), range(0, rows, 1 + rows // MOST_LABELS)
    axes.set_xticks(across, [value_text(grid.columns[k]) for k in across], rotation=45 if columns > 8 else 0)
    axes.set_yticks(down, [value_text(grid.index[k]) for k in down])
    down_key, across_key, *best_over = _short(grid, folded)
    axes.set_xlabel(across_key)
    axes.set_ylabel(down_key)
    figure.suptitle(_wrapped(_heading(metric, best_over), size[0]), fontsize=10)
    figure.colorbar(image, ax=axes, format=lambda value, _: with_unit(metric, value))
    if rows * columns <= 200:
        _write_cells(axes, values, image, metric)
    return figure


def save_heat_map(figure: "Figure", path: Path) -> None:
    """Write a heat map as PNG, whole or not at all, without date or version inside."""
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130, metadata={"Software": None})


def _short(grid: pd.DataFrame, folded: Sequence[str]) -> list[str]:
    """The key down, the one across and those `folded`, by their last parts, the first two with their units."""
    keys = [str(grid.index.name), str(grid.columns.name), *folded]
    short = short_keys(keys)
    return [titled(key, name) for key, name in zip(keys[:2], short[:2], strict=True)] + short[2:]


def _heading(metric: str, folded: Sequence[str]) -> str:
    said = said_name(metric)
    return f"{said}, best over {' and '.join(folded)}" if folded else said


def _wrapped(text: str, inches: float) -> str:
    """Lines that fit a figure: about 13 characters of 10 points an inch; keys are broken only between words."""
    return "\n".join(textwrap.wrap(text, int(13 * inches), break_long_words=False, break_on_hyphens=False))


def _scale(values: "np.ma.MaskedArray[Any, Any]") -> str:
    """Logarithmic colours when positive values span more than a factor of 20."""
    known = values.compressed()
    return "log" if known.size and known.min() > 0 and known.max() > 20 * known.min() else "linear"


def _write_cells(axes: Any, values: "np.ma.MaskedArray[Any, Any]", image: Any, metric: str) -> None:
    for (row, column), value in np.ndenumerate(values.filled(np.nan)):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            axes.text(column, row, with_unit(metric, value), ha="center", va="center", fontsize=7,
                      color="black" if light else "white")


def _part(path: Path) -> pa.Table:
    """A part file with its replication as second column."""
    table = pq.read_table(path, partitioning=None)
    replication = np.full(len(table), replication_of(path), dtype=np.int64)
    return table.add_column(1, "replication", pa.array(replication))


def _swept(means: pd.DataFrame) -> list[str]:
    return [str(c) for c in means.columns if c not in ("point", "mean", "sem", "failed", "verdict")]


def value_text(value: Any) -> str:
    """A swept value as text; a dash where there is none."""
    if isinstance(value, float):
        return "-" if np.isnan(value) else f"{value:g}"
    return "-" if value is None or value is pd.NA else str(value)


def number_text(value: Any) -> str:
    """A metric as text; a dash where it is undefined."""
    if value is None or np.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:.4g}"
