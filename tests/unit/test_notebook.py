"""A result in a notebook and as OpenMetrics: the numbers of its summary, read back by the rules of the format."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from simulator import figures, scenario_from, simulate
from simulator.cli.main import main
from simulator.report.openmetrics import openmetrics

TWO = {
    "name": 'two "servers" & <more>',
    "workload": {"requests": {"prompt": 1, "output": [4, 4, 2], "arrival_s": [0, 0, 1]}},
    "hardware": {"gpu": "unit", "step_s": 1}, "engine": {"name": "vllm-0.24", "schedule_ahead": 0},
    "policy": {"name": "chunked", "max_num_seqs": 2}, "max_model_len": 100,
}  # fmt: skip
SAMPLE = re.compile(r'^(?P<name>[a-z0-9_]+)\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\} (?P<value>\S+)$')


@pytest.fixture
def result():
    return simulate(scenario_from(TWO), "reference")


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, labels without the scenario) -> value, by the grammar of OpenMetrics 1.0 for labelled samples."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    found, family = {}, ""
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            family = line.split(" ")[2]
        elif not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            assert match["name"].removesuffix("_count").removesuffix("_sum") == family
            rest = ",".join(part for part in match["labels"].split(",") if not part.startswith("scenario="))
            key = (match["name"], rest)
            assert key not in found
            found[key] = float(match["value"])
    return found


def test_openmetrics_by_hand(result) -> None:
    """Two slots, steps of 1 s: both 4-token answers end after 4 s, the third waits from 1 to 4 and ends at 6."""
    got = samples(openmetrics(result.summary))
    assert got["servecast_requests", 'state="completed"'] == 3
    assert got["servecast_e2e_request_latency_seconds_sum", ""] == pytest.approx(4 + 4 + 5)
    assert got["servecast_e2e_request_latency_seconds_count", ""] == 3
    assert got["servecast_request_queue_time_seconds", 'quantile="0.999"'] == pytest.approx(3, rel=0.01)
    assert got["servecast_inter_token_latency_seconds", 'quantile="0.5"'] == pytest.approx(1)
    assert got["servecast_makespan_seconds", ""] == pytest.approx(6)
    verdicts = {labels: value for (name, labels), value in got.items() if name == "servecast_verdict"}
    assert sum(verdicts.values()) == 1 and len(verdicts) == 5
    assert '\\"servers\\"' in openmetrics(result.summary)


def test_what_never_came_is_infinite() -> None:
    late = simulate(scenario_from(TWO | {"horizon_s": 5.5}), "reference")
    got = samples(openmetrics(late.summary))
    assert got["servecast_requests", 'state="unfinished"'] == 1
    assert np.isinf(got["servecast_e2e_request_latency_seconds", 'quantile="0.99"'])


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "wx_four_slots", "--openmetrics"]) == 0
    assert samples(capsys.readouterr().out)["servecast_makespan_seconds", ""] == pytest.approx(14)


class Cells(HTMLParser):
    """Text of the table cells; markup from input would open elements of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_result_shows_itself(result) -> None:
    page = Cells()
    page.feed(result._repr_html_())
    assert "more" not in page.tags and 'two "servers" & <more>' in page.text
    assert "E2E" in page.text and "5 s" in "".join(page.text)
    frame = result.to_pandas()
    assert frame["e2e_s"].tolist() == pytest.approx([4, 4, 5]) and list(frame["status"]) == ["finished"] * 3
    assert set(figures(result)) == {"slots", "load", "latency", "time"}
