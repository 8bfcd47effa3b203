"""Templates filled in: one environment for every page. HTML is escaped; Markdown cells go through `markdown_cell`."""

import base64
import functools
import hashlib
import re
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from simulator.report.svg import css_variables
from simulator.text import number, restarted, seconds, several, share

_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|h|min)(?![\w-]))")


def render(template: str, **values: Any) -> str:
    """A template of `templates/` with its values; `css_light` and `css_dark` hold the colours, `script` and
    `script_hash` what sorted.html runs."""
    found = _environment().get_template(template)
    return found.render(css_light=css_variables(False), css_dark=css_variables(True), script=Markup(SORT_SCRIPT),
                        script_hash=Markup(script_hash()), **values)


@functools.cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("simulator.report", "templates"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(seconds=seconds, number=number, percent=share, several=several, tied=tied, restarted=restarted,
                       breakable=breakable)
    return env


def tied(text: str) -> str:
    """Units and signs stay on the line of their number."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def breakable(text: str) -> Markup:
    """A key that may go on in the next line behind each of its parts."""
    return Markup("<wbr>").join(re.split(r"(?<=[_.])", text))


def markdown_cell(value: Any) -> str:
    """A value inside a Markdown table: no pipes, no line ends, no markup of its own."""
    text = str(value)
    for mark in ("\\", "|", "`", "*", "_", "<", ">", "[", "]"):
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


SORT_SCRIPT: Final = """
document.querySelectorAll("table.sort th").forEach(function (head) {
  head.tabIndex = 0;
  function sort() {
    var table = head.closest("table"), place = head.cellIndex, body = table.tBodies[0];
    var up = head.getAttribute("aria-sort") !== "ascending";
    var rows = Array.from(body.rows);
    function key(row) {
      var cell = row.cells[place], given = cell.dataset.v;
      return given === undefined ? cell.textContent.trim() : given === "" ? Infinity : Number(given);
    }
    rows.sort(function (a, b) {
      var x = key(a), y = key(b);
      var order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return up ? order : -order;
    });
    rows.forEach(function (row) { body.appendChild(row); });
    table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }
  head.addEventListener("click", sort);
  head.addEventListener("keydown", function (event) { if (event.key === "Enter") { sort(); } });
});
"""


def script_hash(script: str = SORT_SCRIPT) -> str:
    """The script's source for a content security policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"
