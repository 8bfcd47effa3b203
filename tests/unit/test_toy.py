"""The terminal pictures: every cell of a worked example, and what is refused."""

import re

import pytest
from rich.console import Console

from simulator.errors import ConfigError
from simulator.report.toy import toy


def drawn(lengths: list[int], slots: int, width: int = 100) -> str:
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(toy(lengths, slots))
    return console.export_text()


def slots_of(text: str) -> list[str]:
    return re.findall(r"^slot \d+ +(\S+)$", text, re.MULTILINE)


def test_every_step_of_the_worked_example() -> None:
    lines = slots_of(drawn([4, 4, 10, 10, 4, 4], 4))
    per_step = [line[::4] for line in lines]
    assert all(len(line) == 14 * 4 for line in lines)
    assert per_step[:4] == ["AAAA░░░░░░EEEE", "BBBB░░░░░░FFFF", "CCCCCCCCCC····", "DDDDDDDDDD····"]
    assert per_step[4:] == ["AAAAEEEE······", "BBBBFFFF······", "CCCCCCCCCC····", "DDDDDDDDDD····"]


def test_totals_of_the_worked_example() -> None:
    text = drawn([4, 4, 10, 10, 4, 4], 4)
    assert re.search(r"total steps +14 +10\b", text)
    assert re.search(r"slot use +64\.29 % +90 %", text)
    assert re.search(r"mean wait \[steps\] +5 +2\b", text)
    assert re.search(r"longest wait \[steps\] +10 +4\b", text)
    assert re.search(r"^E +4 +10 +14 +4 +8 *$", text, re.MULTILINE)


def test_slot_use_of_uneven_outputs() -> None:
    assert drawn([5, 200, 3, 150], 4).count("44.75 % in use") == 2  # (5 + 200 + 3 + 150) / (4 x 200)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = drawn([5, 200, 3, 150, 77], 3, width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_many_slots_are_cut_and_counted() -> None:
    text = drawn([3] * 70, 64)
    assert len(slots_of(text)) == 80 and text.count("and 24 more slots") == 2


@pytest.mark.parametrize(
    ("lengths", "slots", "words"),
    [
        ([], 4, "at least one"),
        ([4, 0], 4, "got 0"),
        ([-1], 4, "got -1"),
        ([4], 0, "got 0"),
        ([2_000_000], 4, "got 2000000"),
    ],
)
def test_what_is_not_accepted(lengths: list[int], slots: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        toy(lengths, slots)
