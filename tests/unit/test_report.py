"""The HTML report: the answer first, input is never markup, nothing is fetched, equal results equal bytes."""

import re
from html.parser import HTMLParser

import pytest

from simulator import simulate
from simulator.report.page import render_report
from simulator.run import Result
from simulator.scenario.spec import scenario_from

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=y>&{{ 7*7 }}"
VOID = {"meta", "br", "img", "hr", "input", "link"}


class Page(HTMLParser):
    """Tags and attributes of a page; checks that elements nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name.split(":")[-1] in ("href", "src")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def run(name: str = "chat", policy: str = "chunked", requests: int = 60, **more: object) -> Result:
    data = {
        "name": name,
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20, "requests": requests},
            "prompt": {"kind": "lognormal", "mean": 400, "cv": 1, "max": 1500},
            "output": {"kind": "lognormal", "mean": 40, "cv": 1, "max": 200},
        },
        "policy": {"name": policy, "max_num_seqs": 16},
        "max_model_len": 2048,
        "slo": {"ttft_s": 0.5},
        **more,
    }
    return simulate(scenario_from(data), engine="reference", log=True)


@pytest.fixture(scope="module")
def chat() -> Result:
    return run(name=EVIL, description=EVIL)


@pytest.fixture(scope="module")
def page(chat: Result) -> str:
    return render_report(chat)


def test_the_answer_comes_first(chat: Result, page: str) -> None:
    text = page[page.index("<main>") :]
    summary = chat.summary
    assert text.index("60 of 60 requests were answered") < text.index("<svg")
    assert f"{summary['throughput']['output_tokens_per_s']:,.0f}" in text
    assert summary["conservation"] in text
    assert summary["stability"]["reason"] in text


def test_definitions_assumptions_and_gaps_are_told(chat: Result, page: str) -> None:
    for words in (
        "What was not modelled",
        "Assumptions and provenance",
        "left for KV",
        "Where the time goes",
    ):
        assert words in page
    assert chat.setup.gpu.mark in page and f"seed {chat.scenario.seed}" in page


@pytest.mark.parametrize("several", [False, True])
def test_input_is_text_and_nothing_is_fetched(chat: Result, several: bool) -> None:
    text = render_report([chat, run(policy="static")] if several else chat)
    seen = Page(text)
    assert not seen.open
    assert not {"script", "img", "iframe", "link", "object", "image"} & set(seen.tags)
    assert not seen.handlers
    assert all(link.startswith("#") for link in seen.links)
    assert "&lt;script&gt;alert(1)" in text and "{{ 7*7 }}" in text
    assert not re.search(r"url\((?!#)|@import", text)


def test_equal_results_give_equal_bytes(page: str) -> None:
    assert render_report(run(name=EVIL, description=EVIL)) == page


def test_ids_are_unique_in_the_page(chat: Result) -> None:
    ids = re.findall(r' id="([^"]+)"', render_report([chat, run(policy="static")]))
    assert ids and len(ids) == len(set(ids))


def test_comparison_shows_both_values_and_the_ratio() -> None:
    results = [run(name="one", policy="static"), run(name="two")]
    text = render_report(results)
    rates = [result.summary["throughput"]["output_tokens_per_s"] for result in results]
    assert f"{rates[1] / rates[0]:.2f}x" in text
    assert "answers are returned whole" not in text.split("<svg")[0]
    assert text.index("one") < text.index("two")


def test_nothing_answered_is_said_and_null_is_a_dash() -> None:
    text = render_report(run(max_model_len=2))
    assert "0 of 60 requests were answered" in text and "—" in text
    assert "Rejected, longer than max_model_len: 60." in text
    assert not re.search(r">\s*(nan|inf|None)\b", text)


def test_textbook_run_needs_no_profile() -> None:
    data = {
        "workload": {"requests": {"output": [4, 10]}},
        "hardware": {"gpu": "unit"},
        "policy": {"name": "static", "max_num_seqs": 2},
    }
    text = render_report(simulate(scenario_from(data), engine="reference"))
    assert "Every step takes 1 s" in text and "Memory of one GPU" not in text


def test_no_result_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        render_report([])


def test_a_large_run_makes_a_small_page() -> None:
    assert len(render_report(run(requests=3000)).encode()) < 3_000_000
