"""The validation report: one self-contained HTML page, figures inline as SVG, every value escaped."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from calibration.measured import find_runs, load_run
from calibration.validate import figures
from simulator.profiles.uncertainty import METRICS
from simulator.report.svg import to_svg

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Predicted against measured</title>
<style>
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.outside { font-weight: bold; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; background: #fff; }
</style></head><body>
<h1>Predicted against measured</h1>
<p>Signed error in percent. Bold: the measured value lies outside the 90 % interval of the prediction.
Means are over runs that were not used for fitting.{% if result.inside_interval_pct is not none %}
Inside the interval: {{ result.inside_interval_pct }} % of run-metric pairs; median half-width
{{ result.median_width_pct }} %.{% endif %}</p>
<div class="wide"><table><thead><tr><th>run</th>{% for m in metrics %}<th>{{ m }}</th>{% endfor %}
<th>preemptions, predicted / measured</th></tr></thead><tbody>
{% for run in result.runs %}<tr><td>{{ run.run }}{% if run.used_for_fit %} (fit){% endif %}</td>
{% for m in metrics %}{% set cell = run.metrics.get(m) %}{% if cell %}
<td{% if not cell.low <= cell.measured <= cell.high %} class="outside"{% endif %}
 title="predicted {{ '%.5g'|format(cell.predicted) }}, measured {{ '%.5g'|format(cell.measured) }}, interval
 {{ '%.5g'|format(cell.low) }} to {{ '%.5g'|format(cell.high) }}">{{ '%+.1f'|format(cell.error_pct) }}</td>
{% else %}<td></td>{% endif %}{% endfor %}
<td>{{ run.preemptions.predicted }} / {{ run.preemptions.measured }}</td></tr>
{% endfor %}</tbody><tfoot><tr><th>mean absolute</th>{% for m in metrics %}
<th>{% if m in result.mean_abs_error_pct %}{{ '%.2f'|format(result.mean_abs_error_pct[m]) }}{% endif %}</th>
{% endfor %}<th></th></tr></tfoot></table></div>
{% if result.refused %}<h2>Not modelled</h2><ul>{% for run in result.refused %}
<li>{{ run.run }}: {{ run.reason }}</li>{% endfor %}</ul>{% endif %}
{% for figure in figures %}<figure>{{ figure }}</figure>{% endfor %}
</body></html>
"""


def validation_page(result: dict[str, Any], folders: Iterable[Path], most_figures: int = 8) -> str:
    """HTML of a validation; figures of the first runs that were not used for fitting."""
    unused = {entry["run"] for entry in result["runs"] if not entry["used_for_fit"]}
    refused = {entry["run"] for entry in result.get("refused", ())}
    found = find_runs([Path(folder) for folder in folders])
    runs = [load_run(path) for path in found if f"{path.parent.name}/{path.name}" not in refused]
    shown = [run for run in runs if run.name in unused and len(run.requests) > 1] or runs
    drawn = [(run.name, figure) for run in shown[: most_figures // 2] for figure in figures(run)]
    # drawn by matplotlib from numbers and escaped labels
    inline = [Markup(to_svg(figure, name, f"f{k}-")) for k, (name, figure) in enumerate(drawn)]
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(result=result, metrics=METRICS, figures=inline) + "\n"
