"""Documentation and code name the same things."""

import re
import shlex
from pathlib import Path

import pytest

from scenarios import ROOT as SCENARIOS
from simulator.cli.main import COMMANDS
from simulator.scenario.load import RetrySpec
from simulator.scenario.spec import Scenario
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
