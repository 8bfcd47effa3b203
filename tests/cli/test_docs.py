"""Documentation and code name the same things."""

import re
import shlex
from pathlib import Path

import pytest

from scenarios import ROOT as SCENARIOS
from simulator.cli.main import COMMANDS
from simulator.cli.schema import scenario_schema
from simulator.errors import ConfigError
from simulator.scenario.load import RetrySpec
from simulator.scenario.spec import Scenario, scenario_from
from simulator.workload.arrivals import Arrivals
from simulator.workload.sessions import Sessions
from simulator.workload.spec import Inline, TraceFile

HOME = Path(__file__).resolve().parents[2]
PAGES = [path for path in (HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))) if path.is_file()]


def scenario_keys():
    for name, field in Scenario.model_fields.items():
        yield name
        yield from getattr(field.annotation, "model_fields", {})
    yield from RetrySpec.model_fields
    for kind in (Arrivals, Inline, Sessions, TraceFile):
        yield from kind.__dataclass_fields__


@pytest.mark.parametrize("key", sorted(set(scenario_keys())))
def test_every_scenario_key_is_described(key):
    text = (HOME / "docs" / "scenarios.md").read_text(encoding="utf-8")
    assert re.search(rf"(`|\.|\{{|, ){key}\b", text), f"docs/scenarios.md says nothing of {key}"


def largest_numbers():
    """The table of docs/scenarios.md: dotted key -> largest number."""
    text = (HOME / "docs" / "scenarios.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \| ([\d.]+)", text.split("## Largest numbers")[1].split("## ")[0], re.MULTILINE)
    return {key: float(most) for keys, most in rows for key in re.findall(r"`([\w.]+)`", keys)}


def test_largest_numbers_are_those_of_the_schema():
    """Every bound in the schema of the scenario's own keys stands in the table, and the other way round."""
    schema, found = scenario_schema(), {}
    for name, part in schema["properties"].items():
        options = [part, *part.get("anyOf", [])]
        for option in options:
            found |= {name: option["maximum"]} if "maximum" in option else {}
            found |= {name: option["exclusiveMaximum"] - 1} if option.get("exclusiveMaximum", 0) > 1 else {}
            section = schema["$defs"].get(option.get("$ref", "").rpartition("/")[2], {})
            for key, inner in section.get("properties", {}).items():
                for each in (inner, *inner.get("anyOf", [])):
                    found |= {f"{name}.{key}": each["maximum"]} if "maximum" in each else {}
    table = {key: most for key, most in largest_numbers().items() if not key.startswith("workload.")}
    assert table == pytest.approx({key: float(most) for key, most in found.items() if key not in NOT_COUNTS})


NOT_COUNTS = ("hardware.expert_skew",)
"""Exponents and shares, described with their keys."""


@pytest.mark.parametrize("key", sorted(key for key in largest_numbers() if key.startswith("workload.")))
def test_larger_numbers_of_a_workload_are_refused(key):
    most = largest_numbers()[key]
    data = {"arrivals": {"kind": "gamma" if key.endswith("cv") else "poisson", "rate": 1.0}, "prompt": 5, "output": 5}
    data["arrivals"] |= {"cv": 1.0} if key.endswith("cv") else {}
    data["arrivals"] |= {} if key.endswith("duration_s") else {"requests": 5}
    if ".prompt." in key:
        data["prompt"] = {"kind": "fixed"} if key.endswith("value") else {"kind": "lognormal", "mean": 5, "cv": 1}
    if ".prefix." in key:
        data["prefix"] = {"groups": 2, "length": 5}
    section, name = key.split(".")[1:]
    data[section][name] = int(most) + 1 if float(most).is_integer() else most * 1.001
    with pytest.raises(ConfigError, match=name):
        scenario_from({"workload": data, "hardware": "unit"})


def commands(page):
    """Command lines on a page: `servecast ...` in code, and after # in the comments of a scenario."""
    for line in page.read_text(encoding="utf-8").splitlines():
        for found in re.findall(r"(?:^\s+|`|^# |[;&] )servecast ([^`;&|>#]*)", line):
            yield shlex.split(found.split("  ")[0].rstrip("."), comments=True)


@pytest.mark.parametrize("page", [*PAGES, *sorted(SCENARIOS.glob("*.yaml"))], ids=lambda path: path.name)
def test_commands_on_a_page_exist_and_their_scenarios_too(page):
    for words in commands(page):
        if words:
            assert words[0] in COMMANDS or words[0].startswith("-"), f"{page.name}: servecast {' '.join(words)}"
        for word in words:
            if word.startswith("scenarios/"):
                assert list(HOME.glob(word)), f"{page.name}: {word} is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def made():
    """(what is written, what writes it, where) of every page and scenario: `--out FOLDER`, `> FILE`, `Save as FILE`."""
    for page in [*PAGES, *sorted(SCENARIOS.glob("*.yaml")), *sorted(SCENARIOS.glob("questions/*.yaml"))]:
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"servecast [^`\n]*?(?:--out|>) [^`\s]+", text):
            call, _, file = re.split(r"(--out|>) (?=[^\s]+$)", line)
            words = shlex.split(call.split(" > ")[0])[1:]
            ends = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
            source = () if words[0] == "calibrate" else (Path(word).stem for word in words[1:ends])
            yield file, (words[0], *source, *set(words) & {"--trace"}), page.name
        for file in re.findall(r"[Ss]ave (?:this )?as `([^`]+)`", text):
            yield file, ("saved", page.name), page.name


def test_no_two_pages_write_different_things_under_one_name():
    """Whoever follows a second page in the same folder must not replace what the first one made."""
    by = {}
    for file, what, page in made():
        by.setdefault(file, {}).setdefault(what, page)
    assert len(by) > 30 and by["out/chat"]
    assert {file: found for file, found in by.items() if len(found) > 1} == {}


@pytest.mark.parametrize("page", [*PAGES, HOME / "Makefile"], ids=lambda path: path.name)
def test_every_pip_install_adds_to_the_one_before(page):
    """`pip install '.[ui]'` after `make demo` would put a copy in place of the installation of the folder."""
    for line in re.findall(r"pip install [^`\n]*", page.read_text(encoding="utf-8")):
        assert re.search(r"pip install .*-e ['.]|servecast\[", line), f"{page.name}: {line}"
