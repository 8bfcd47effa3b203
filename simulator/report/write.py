"""Results as files: summary.json, requests.parquet, steps.parquet, trace.json, plots and one HTML report.

Equal scenario, seed and versions give byte-identical files: no date, no host, no wall-clock time is in them.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from simulator.errors import ConfigError
from simulator.metrics.summary import request_columns
from simulator.report.folder import new_folder
from simulator.state import LOG_FIELDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.run import Result

SUMMARY: Final = "summary.json"
COMPARISON: Final = "comparison.json"
PlotFormat = Literal["png", "svg"]


def write_result(
    result: "Result", out_dir: str | Path, report: bool = True, *, plot_format: PlotFormat = "png"
) -> Path:
    """Write a result into `out_dir`, which appears whole or not at all; returns its absolute path.

    Always summary.json and requests.parquet; with a step log steps.parquet and trace.json (Perfetto); with
    `report` also plots/ and report.html. Raises ConfigError when `out_dir` holds something else.
    """
    with new_folder(out_dir) as folder:
        hosts = result.host_sensitivity
        _write_data(result, folder, {"host_sensitivity": hosts} if hosts else None)
        if report:
            from simulator.report.plots import figures

            _write_plots(figures(result), folder / "plots", plot_format)
            _write_report(result, folder)
    return Path(out_dir).resolve()


def write_comparison(
    results: "Sequence[Result]", out_dir: str | Path, report: bool = True, *, plot_format: PlotFormat = "png"
) -> Path:
    """Several results in one folder: comparison.json (a list of summaries), a sub-folder each, one report."""
    with new_folder(out_dir) as folder:
        _write_json([result.summary for result in results], folder / COMPARISON)
        for k, result in enumerate(results):
            below = folder / f"{k + 1:02d}-{_slug(result.scenario.name)}"
            below.mkdir()
            _write_data(result, below)
        if report:
            from simulator.report.plots import compare_figures

            _write_plots(compare_figures(results), folder / "plots", plot_format)
            _write_report(results, folder)
    return Path(out_dir).resolve()


def load_summary(out_dir: str | Path) -> dict[str, Any]:
    """summary.json of a result folder. Raises ConfigError when there is none that can be read."""
    path = Path(out_dir) / SUMMARY
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}; accepted: a folder written by servecast run"
        ) from error
    if not isinstance(summary, dict):
        raise ConfigError(f"{path}: must hold an object, got {type(summary).__name__}")
    return summary


def json_text(data: Any) -> str:
    """Data as indented JSON in its own key order. Raises ValueError for NaN and infinity."""
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _write_json(data: Any, path: Path) -> None:
    path.write_text(json_text(data), encoding="utf-8")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"


def _write_data(result: "Result", folder: Path, more: dict[str, Any] | None = None) -> None:
    """The files that need no plotting library; `more` goes into the summary."""
    _write_json(result.summary | (more or {}), folder / SUMMARY)
    _write_parquet(request_columns(result), folder / "requests.parquet")
    if result.log is not None:
        from simulator.report.chrome_trace import chrome_trace

        _write_parquet(
            {name: result.log[name] for name in LOG_FIELDS}, folder / "steps.parquet"
        )
        trace = json.dumps(chrome_trace(result), separators=(",", ":"), allow_nan=False)
        (folder / "trace.json").write_text(trace, encoding="utf-8")


def _write_parquet(columns: dict[str, Any], path: Path) -> None:
    """Columns -> parquet; NaN becomes null, text a dictionary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {
        name: pa.array(np.ascontiguousarray(values), from_pandas=True)
        if isinstance(values, np.ndarray)
        else pa.array(values, pa.string()).dictionary_encode()
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path, compression="zstd")


def _write_plots(plots: "dict[str, Figure]", folder: Path, kind: PlotFormat) -> None:
    from simulator.report.svg import svg_file, to_png

    folder.mkdir()
    for name, plot in plots.items():
        content = to_png(plot) if kind == "png" else svg_file(plot).encode()
        (folder / f"{name}.{kind}").write_bytes(content)


def _write_report(results: "Result | Sequence[Result]", folder: Path) -> None:
    from simulator.report.page import render_report

    (folder / "report.html").write_text(render_report(results), encoding="utf-8")
