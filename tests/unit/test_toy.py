"""The terminal pictures: every cell of a worked example, and what is refused."""

import re
from collections.abc import Callable

import pytest
from rich.console import Console, RenderableType

from simulator.errors import ConfigError
from simulator.report.toy import toy
from simulator.report.toy_fair import toy_fair
from simulator.report.toy_memory import toy_memory


def text_of(picture: RenderableType, width: int = 100) -> str:
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(picture)
    return console.export_text()


def drawn(lengths: list[int], slots: int, width: int = 100) -> str:
    return text_of(toy(lengths, slots), width)


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


def test_memory_reserved_and_running_out() -> None:
    """Two answers of 3 after prompts of 1 in memory for 5. Reserved, 4 each: one after the other. Paged, both start; in
    step 2 the second finds no place for its third token, loses two and computes all three in step 3."""
    text = text_of(toy_memory([3, 3], 5, 2))
    reserved, paged = text.split("memory taken")
    lines = [line[2:].rstrip() for line in reserved.splitlines()[1:6]]
    assert lines == ["······", "░░░░░░", "░░A░░B", "░AA░BB", "AAABBB"]
    assert "6 steps, up to 1 request at a time" in reserved and "preempted" not in reserved
    assert [line[2:].rstrip() for line in paged.splitlines()[1:6]] == ["····", "·B··", "·BAB", "BAAB", "AAAB"]
    assert "4 steps, up to 2 requests at a time" in paged and "step 2: B is preempted, 2 tokens dropped" in paged


def test_two_tenants_on_one_slot() -> None:
    """Long A and B of 4, short C and D of 2. In order of arrival the short ones wait 8 and 10. By fair shares A costs
    its tenant 1 + 2 x 4, so C and D (1 + 2 x 2 each) go next and wait 4 and 6, and B 8."""
    text = text_of(toy_fair([4, 2, 4, 2], 1))
    assert [line[::4] for line in slots_of(text)] == ["AAAABBBBCCDD", "AAAACCDDBBBB"]
    assert re.search(r"tenant short: waits, mean +9 steps +5 steps", text)
    assert re.search(r"tenant long: waits, mean +2 steps +4 steps", text)


@pytest.mark.parametrize("picture", [lambda: toy_memory([40, 4], 14), lambda: toy_memory([], 14),
                                     lambda: toy_memory([9000, 9000], 10_000), lambda: toy_fair([4, 4])])
def test_pictures_that_cannot_be_drawn(picture: Callable[[], RenderableType]) -> None:
    with pytest.raises(ConfigError, match=r"must hold|must have|need long and short"):
        picture()
