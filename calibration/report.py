"""The validation report: one self-contained HTML page that looks like the others, pictures inline as SVG."""

from collections.abc import Sequence
from typing import Any, Final

from markupsafe import Markup

from calibration.measured import MeasuredRun
from calibration.validate import figures, heading
from simulator.profiles.host import Host
from simulator.profiles.uncertainty import METRICS
from simulator.report.render import render
from simulator.report.svg import Picture
from simulator.text import number, seconds

_CAPTIONS: Final = ("Every request: predicted against measured; on the line where they agree.",
                    "Running and waiting requests over time, as predicted and, where there is a step log, measured.")
_DETAILED: Final = 4
"""Runs up to which each gets a table of its own."""


def validation_page(result: dict[str, Any], runs: Sequence[MeasuredRun], host: Host | None = None,
                    most_figures: int = 8, fit: str = "") -> str:
    """HTML of a validation of `runs` on `host`; pictures of the first that were not used for fitting. `fit`: that
    the profiles were fitted on these runs (overlay.fit_sentence)."""
    unused = {entry["run"] for entry in result["runs"] if not entry["used_for_fit"]}
    shown = [run for run in runs if run.name in unused and len(run.requests) > 1] or list(runs)
    pictures = [_picture(figure, run.name, caption, f"f{k}{place}-")
                for k, run in enumerate(shown[: most_figures // 2])
                for place, (figure, caption) in enumerate(zip(figures(run, host), _CAPTIONS, strict=True))]
    columns = [name for name in METRICS if any(name in entry["metrics"] for entry in result["runs"])]
    return render(
        "validate.html", title="Predicted against measured", result=result, answer=answer(result),
        columns=[(name, heading(name)) for name in columns], pictures=pictures, value=_value, fit=fit,
        counted=any(entry["preemptions"]["measured"] is not None for entry in result["runs"]),
        detailed=result["runs"] if len(result["runs"]) <= _DETAILED else []) + "\n"


def answer(result: dict[str, Any]) -> list[str]:
    """The outcome in sentences."""
    unused = [entry for entry in result["runs"] if not entry["used_for_fit"]]
    means = result["mean_abs_error_pct"]
    names = (("output_tokens_per_s", "output tokens/s"), ("tpot_mean_s", "TPOT"), ("ttft_mean_s", "TTFT"))
    errors = ", ".join(f"{label} {means[key]:.1f} %" for key, label in names if key in means)
    lines = [f"Mean absolute error over {len(unused)} run{'s' if len(unused) != 1 else ''}: {errors}." if unused else
             "Every run was used for the fit: no error of a prediction."]
    if result["inside_interval_pct"] is not None:
        lines.append(f"{result['inside_interval_pct']:g} % of measured values lie inside the 90 % interval of the "
                     f"prediction; its median half-width is {result['median_width_pct']:.1f} %.")
    return lines


def _picture(figure: Any, name: str, caption: str, prefix: str) -> dict[str, Any]:
    picture = Picture(figure)
    return {"caption": f"{name}. {caption}", "wide": picture.wide,
            "svg": Markup(picture.in_page(f"{name}: {caption}", prefix))}  # drawn from numbers and escaped labels


def _value(metric: str, value: float) -> str:
    return seconds(value) if metric.endswith("_s") and not metric.endswith("_per_s") else number(value)

