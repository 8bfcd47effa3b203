"""Planted bugs that can still be planted; whether tests notice them is for `python -m tests.mutation` to say."""

import ast
from pathlib import Path

from mutation.beyond import BUGS as BEYOND
from mutation.bug import Bug
from mutation.fleets import BUGS as FLEETS
from mutation.planted import BUGS

ROOT = Path(__file__).resolve().parents[2]


def bugs() -> tuple[Bug, ...]:
    return (*BUGS, *BEYOND, *FLEETS)


def test_each_bug_has_one_place_and_leaves_valid_python() -> None:
    places = {}
    for bug in bugs():
        text = (ROOT / bug.file).read_text(encoding="utf-8")
        places[bug.name] = text.count(bug.old)
        ast.parse(text.replace(bug.old, bug.new))
    assert {name: count for name, count in places.items() if count != 1} == {}


def test_names_differ_and_the_tests_named_are_there() -> None:
    found = bugs()
    assert len({bug.name for bug in found}) == len(found)
    named = {(bug.name, test) for bug in found for test in bug.tests if test.startswith("tests/")}
    assert {name for name, _ in named} == {bug.name for bug in found}
    assert sorted(each for each in named if not (ROOT / each[1]).exists()) == []
