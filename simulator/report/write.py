"""Results as files: summary.json, requests.parquet, steps.parquet, trace.json, plots and one HTML report.

Pictures are drawn once: the SVG of the page is also that of plots/. PNG takes as long again and is made when asked for.

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
from simulator.reading import MAX_RESULT, ReadError, read_json
from simulator.records import LOG_FIELDS
from simulator.report.folder import new_folder
from simulator.uncollected import uncollected

if TYPE_CHECKING:
    from simulator.run import Result

SUMMARY: Final = "summary.json"
COMPARISON: Final = "comparison.json"
PlotFormat = Literal["png", "svg"]


def write_result(
    result: "Result", out_dir: str | Path, report: bool = True, *, plot_format: PlotFormat = "svg"
) -> Path:
    """Write a result into `out_dir`, which appears whole or not at all; returns its absolute path.

    Always summary.json and requests.parquet; fleet.parquet and autoscaler.yaml where the fleet changes; with a step
    log steps.parquet and trace.json (Perfetto); with
    `report` also plots/ and report.html. Raises ConfigError when `out_dir` holds something else.
    """
    with new_folder(out_dir) as folder, uncollected():
        _write_data(result, folder, result.beside_summary)
        if report:
            _write_report(result, folder, plot_format)
    return Path(out_dir).resolve()


def write_comparison(
    results: "Sequence[Result]", out_dir: str | Path, report: bool = True, *, plot_format: PlotFormat = "svg"
) -> Path:
    """Several results in one folder: comparison.json (a list of summaries), a sub-folder each, one report."""
    with new_folder(out_dir) as folder, uncollected():
        _write_json([result.summary for result in results], folder / COMPARISON)
        for k, result in enumerate(results):
            below = folder / f"{k + 1:02d}-{_slug(result.scenario.name)}"
            below.mkdir()
            _write_data(result, below)
        if report:
            _write_report(results, folder, plot_format)
    return Path(out_dir).resolve()


def load_summary(out_dir: str | Path) -> dict[str, Any]:
    """summary.json of a result folder. Raises ConfigError when there is none that can be read."""
    path = Path(out_dir) / SUMMARY
    try:
        summary = read_json(path, MAX_RESULT)
    except ReadError as error:
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
    if result.fleet is not None:
        _write_fleet(result, folder)
    if result.log is not None:
        from simulator.report.chrome_trace import chrome_trace

        _write_parquet(
            {name: result.log[name] for name in LOG_FIELDS}, folder / "steps.parquet"
        )
        trace = json.dumps(chrome_trace(result), separators=(",", ":"), allow_nan=False)
        (folder / "trace.json").write_text(trace, encoding="utf-8")


def _write_fleet(result: "Result", folder: Path) -> None:
    """fleet.parquet: what happened to the fleet; autoscaler.yaml: the autoscaling that was simulated."""
    from simulator.report.autoscaler import manifests

    assert result.fleet is not None
    _write_parquet({name: result.fleet[name] for name in result.fleet.dtype.names or ()}, folder / "fleet.parquet")
    text = manifests(result)
    if text:
        (folder / "autoscaler.yaml").write_text(text, encoding="utf-8")


def _write_parquet(columns: dict[str, Any], path: Path) -> None:
    """Columns -> parquet; NaN becomes null, text a dictionary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [_number_column(values) if isinstance(values, np.ndarray) else _text_column(values)
              for values in columns.values()]
    pq.write_table(pa.Table.from_arrays(arrays, names=list(columns)), path, compression="zstd")


def _number_column(values: Any) -> Any:
    """A numpy column as a pyarrow array that shares its memory. `pyarrow.array` would load pandas to ask about it."""
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, dtype=bool)
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes()) if missing.any() else None
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def _text_column(values: Sequence[str]) -> Any:
    """Text with few distinct values as a dictionary, in order of first use."""
    import pyarrow as pa

    codes = {text: code for code, text in enumerate(dict.fromkeys(values))}
    words = [text.encode() for text in codes]
    ends = np.cumsum([0, *(len(word) for word in words)], dtype=np.int32)
    names = pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(words)))
    indices = np.fromiter((codes[text] for text in values), dtype=np.int32, count=len(values))
    return pa.DictionaryArray.from_arrays(_number_column(indices), names)


def _write_report(results: "Result | Sequence[Result]", folder: Path, kind: PlotFormat) -> None:
    """plots/ and report.html."""
    from simulator.report.page import render_report
    from simulator.report.plots import pictures
    from simulator.report.svg import to_png

    drawn = pictures(results)
    (folder / "plots").mkdir()
    for name, picture in drawn.items():
        content = to_png(picture.figure) if kind == "png" else picture.svg.encode()
        (folder / "plots" / f"{name}.{kind}").write_bytes(content)
    (folder / "report.html").write_text(render_report(results, drawn), encoding="utf-8")
