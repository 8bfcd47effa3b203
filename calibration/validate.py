"""Hold predictions against measured runs: per run and metric, predicted, measured, signed error, 90 % interval.

`validate` takes folders, returns plain data (JSON-ready); `table` and `figures` draw it. Means are over
runs that were not used for fitting.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from calibration.accepted import NotModelledError
from calibration.classes import class_of, served_alone
from calibration.fit import used_for_fit
from calibration.inputs import places_of, requests_bytes, runs_of
from calibration.launches import own_host
from calibration.measured import MeasuredRun, measured_metrics
from calibration.predict import Prediction, predict, setup_of
from calibration.server import Server
from simulator.errors import ConfigError, ServecastError
from simulator.metrics.trust import weakest_mark
from simulator.profiles.host import Host, load_host
from simulator.profiles.uncertainty import METRICS, load_uncertainty, share_alone
from simulator.records import LogRow, dtype_of
from simulator.report.svg import LINES, MUTED, figure, style
from simulator.text import several
from simulator.units import NS_PER_S

Report = dict[str, Any]
Pair = tuple[MeasuredRun, Prediction]

_NO_SERVER: Final = Server("", "")


def validate(inputs: Iterable[Path], host: Host | None = None, server: Server = _NO_SERVER,
             own_launches: bool = False) -> Report:
    """Predict every run in or below folders and in clients' result files once, on `host` (default: the measured
    one), with `own_launches` scaled to each run's own (launches.own_host); `server` says of the files what they do not.

    Raises CalibrationError where a run cannot be read, or where every
    one uses what is not modelled.

    Keys: refused (run, reason: what is not modelled), runs (run, class, used_for_fit, mark,
    metrics {name: predicted, measured, error_pct, low, high}, preemptions), own_launches; of runs that were not used
    for fitting mean_abs_error_pct, inside_interval_pct, median_width_pct, and classes (class, runs, the same three).
    """
    pairs, refused = predicted(inputs, host, server, own_launches=own_launches)
    return report(pairs, host, own_launches) | {"refused": refused}


def predicted(inputs: Iterable[Path], host: Host | None = None, server: Server = _NO_SERVER,
              note: Callable[[str], None] = lambda line: None, own_launches: bool = False,
              progress: Callable[[int, float], None] = lambda done, share: None,
              ) -> tuple[list[Pair], list[dict[str, str]]]:
    """Runs with their predictions, and those refused with the reason; `note` is told what a file leaves open,
    `progress` how many files and folders are done, and which share of all bytes of requests that is."""
    pairs: list[Pair] = []
    refused: list[tuple[Path, ServecastError]] = []
    places = places_of(inputs)
    sizes = [requests_bytes(place) for place in places]
    for k, place in enumerate(places):
        if k:
            progress(k, sum(sizes[:k]) / max(1, sum(sizes)))
        try:
            for run in runs_of(place, server, note):
                on = own_host(run, host or load_host()) if own_launches else host
                pairs.append((run, predict(run, setup_of(run, on))))
        except (NotModelledError, ConfigError) as error:
            refused.append((place, error))
    if not pairs:
        raise refused[0][1]
    return pairs, [{"run": f"{path.parent.name}/{path.name}", "reason": str(error)} for path, error in refused]


def report(pairs: Sequence[Pair], host: Host | None = None, own_launches: bool = False) -> Report:
    """The report of `validate` for runs already predicted, without `refused`."""
    on = host or load_host()
    entries = [_entry(run, prediction, on, on.known or own_launches) for run, prediction in pairs]
    unused = [entry for entry in entries if not entry["used_for_fit"]]
    classes: dict[str, list[Report]] = {}
    for entry in unused:
        classes.setdefault(entry["class"], []).append(entry)
    return {"runs": entries, "own_launches": own_launches, **_errors(unused),
            "classes": [{"class": name, "runs": len(part), **_errors(part)} for name, part in sorted(classes.items())]}


def _errors(entries: Sequence[Report]) -> Report:
    """Mean absolute errors, share inside the intervals and the median half-width of some runs."""
    cells = [cell for entry in entries for cell in entry["metrics"].values()]
    inside = [cell["low"] <= cell["measured"] <= cell["high"] for cell in cells]
    widths = [100 * (cell["high"] - cell["low"]) / 2 / cell["predicted"] for cell in cells]
    return {
        "mean_abs_error_pct": _means(entries),
        "inside_interval_pct": round(100 * float(np.mean(inside)), 1) if inside else None,
        "median_width_pct": round(float(np.median(widths)), 2) if widths else None,
    }


def _entry(run: MeasuredRun, prediction: Prediction, host: Host, known_host: bool) -> Report:
    measured: dict[str, float] = dict(measured_metrics(run))
    predicted: dict[str, float] = dict(prediction.metrics)
    if run.engine.num_gpu_blocks is not None and run.engine.num_gpu_blocks_override is None:
        measured["num_gpu_blocks"] = run.engine.num_gpu_blocks
        predicted["num_gpu_blocks"] = prediction.num_gpu_blocks
    setup = setup_of(run)
    mark = weakest_mark(setup.gpu, setup.engine, setup.model, run.engine.tensor_parallel_size, host,
                        stages=run.engine.pipeline_parallel_size, weights=run.engine.weight_dtype,
                        kv=run.engine.kv_cache_dtype)
    alone, output = served_alone(run), float(run.requests.output_tokens.mean())
    shares = {name: share_alone(name, predicted["ttft_mean_s"], predicted["e2e_mean_s"], output) if alone else 0.0
              for name in METRICS}
    cells = {name: _cell(name, predicted[name], measured[name], mark, known_host, shares[name])
             for name in METRICS if name in measured}
    return {
        "run": run.name,
        "class": class_of(run),
        "used_for_fit": used_for_fit(run.name),
        "mark": mark,
        "metrics": cells,
        "preemptions": {"predicted": prediction.preemptions, "measured": _preemptions(run)},
    }


def _cell(name: str, predicted: float, measured: float, mark: str, known_host: bool, alone: float) -> dict[str, float]:
    low, high = load_uncertainty().interval(name, predicted, mark, known_host, alone)
    return {
        "predicted": predicted,
        "measured": measured,
        "error_pct": round(100 * (predicted / measured - 1), 2),
        "low": low,
        "high": high,
    }


def _preemptions(run: MeasuredRun) -> int | None:
    if run.steps is None or "preemptions" not in run.steps:
        return None
    return int(run.steps.preemptions.max())


def _means(entries: Sequence[Report]) -> dict[str, float]:
    """Mean absolute error [%] by metric."""
    means = {}
    for name in METRICS:
        errors = [abs(entry["metrics"][name]["error_pct"]) for entry in entries if name in entry["metrics"]]
        if errors:
            means[name] = round(float(np.mean(errors)), 2)
    return means


def heading(metric: str) -> str:
    """`output_tokens_per_s` -> `output tokens/s`, `ttft_mean_s` -> `ttft mean`."""
    return metric.replace("_per_s", "/s").removesuffix("_s").replace("_", " ")


def table(result: Report) -> Table:
    """Signed errors, one row a run; runs used for fitting are marked. Metrics that no run has are left out."""
    runs = result["runs"]
    metrics = [name for name in METRICS if any(name in entry["metrics"] for entry in runs)]
    counted = any(entry["preemptions"]["measured"] is not None for entry in runs)
    states = "; CPU times scaled to the launches in each run's own log" if result["own_launches"] else ""
    title = f"predicted against measured: error in %{states}"
    grid = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    grid.add_column("run", overflow="fold", vertical="bottom")
    for name in metrics:
        grid.add_column(heading(name).replace(" ", "\n"), justify="right", min_width=6, vertical="bottom")
    if counted:
        grid.add_column("preemp-\ntions", justify="right", no_wrap=True, vertical="bottom")
    above = ""
    for entry in runs:
        folder, _, run = entry["run"].rpartition("/")
        if folder and folder != above:
            grid.add_row(f"{folder}/")
        above = folder
        cells = [f"{entry['metrics'][n]['error_pct']:+.1f}" if n in entry["metrics"] else "" for n in metrics]
        count = entry["preemptions"]
        shown = "" if count["measured"] is None else f"{count['predicted']} / {count['measured']}"
        name = ("  " if folder else "") + run + (" (fit)" if entry["used_for_fit"] else "")
        grid.add_row(name, *cells, *([shown] if counted else []))
    if len(result["classes"]) > 1:
        grid.add_row("mean absolute")
        for part in result["classes"]:
            grid.add_row(f"  {part['class']} ({several(part['runs'], 'run')})", *_means_row(part, metrics))
    judged = ", runs not used for fitting" if any(entry["used_for_fit"] for entry in runs) else ""
    grid.add_row(f"mean absolute{judged}", *_means_row(result, metrics))
    return grid


def _means_row(part: Report, metrics: Sequence[str]) -> list[str]:
    means = part["mean_abs_error_pct"]
    return [f"{means[n]:.1f}" if n in means else "" for n in metrics]


def figures(run: MeasuredRun, host: Host | None = None) -> list[Figure]:
    """Two figures of one run: TTFT and E2E per request, and running and waiting requests over time."""
    prediction = predict(run, setup_of(run, host), log=True)
    with style():
        return [_scatter(run, prediction), _over_time(run, prediction)]


def _scatter(run: MeasuredRun, prediction: Prediction) -> Figure:
    measured = run.requests.set_index("id").loc[prediction.ids]
    fig, panels = figure(7.6, 3.6, 1, 2)
    pairs = (
        ("TTFT", prediction.first_s - prediction.arrival_s, measured.ttft_s.to_numpy()),
        ("E2E", prediction.last_s - prediction.arrival_s, measured.e2e_s.to_numpy()),
    )
    for axes, (name, simulated, real) in zip(panels, pairs, strict=True):
        top = max(float(simulated.max()), float(real.max()))
        axes.plot([0, top], [0, top], color=MUTED, linewidth=1)
        axes.scatter(real, simulated, s=9, alpha=0.5, linewidth=0, color=LINES[0])
        axes.set(xlabel=f"measured {name} [s]", ylabel=f"predicted {name} [s]", xlim=(0, top), ylim=(0, top))
    return fig


def _over_time(run: MeasuredRun, prediction: Prediction) -> Figure:
    fig, panels = figure(7.6, 3.6, 2, 1, sharex=True)
    log = prediction.log if prediction.log is not None else np.zeros(0, dtype=dtype_of(LogRow))
    rows = log[log["steps"] > 0]
    start = rows["start"] / NS_PER_S
    for axes, name in zip(panels, ("running", "waiting"), strict=True):
        axes.step(start, rows[name], where="post", linewidth=1, label="predicted", color=LINES[0])
        if run.steps is not None:
            axes.step(run.steps.t_schedule_s, run.steps[f"n_{name}"], where="post", linewidth=1, label="measured",
                      color=LINES[1])
        axes.set(ylabel=f"{name} requests")
        axes.legend(loc="upper right")
    panels[-1].set_xlabel("time [s]")
    return fig


def fit_figure(gaps: Any) -> Figure:
    """Fit against points: measured output gaps and the fitted GPU times (calibration.fit_steps.StepFit.gaps)."""
    with style():
        fig, panels = figure(9.0, 4.2, 1, 2)
        for axes, (kind, name) in zip(panels, ((0, "decode"), (1, "prefill")), strict=True):
            part = gaps[gaps.kind == kind]
            by = part.decode_context_tokens / 1e3 if kind == 0 else part.prefill_attention_pairs / 1e6
            for label, seconds, color in (("measured", part.gap_s, LINES[1]),
                                          ("fit", part.gap_s * (1 + part.error), LINES[0])):
                axes.scatter(by, seconds * 1e3, s=9, alpha=0.5, linewidth=0, label=label, color=color)
            axes.set(xlabel="thousand context tokens" if kind == 0 else "million query-key pairs",
                     ylabel=f"{name} step [ms]", ylim=(0, float(np.percentile(part.gap_s, 98)) * 1.3e3))
            axes.legend()
    return fig
