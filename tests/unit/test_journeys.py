"""The picture of a busy server: a row a request, its waits where they were."""

import numpy as np
import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.report.journeys import ANSWER, PREFILL, WAITING, journey_figure
from simulator.report.plots import figures
from simulator.report.slots import MAX_SPANS


def textbook(policy: str, outputs: list[int], **more: object) -> Scenario:
    return scenario_from({"workload": {"requests": {"output": outputs, "prompt": 1}}, "hardware": "unit",
                          "policy": {"name": policy, "max_num_seqs": 1}} | more)


def bars(scenario: Scenario) -> dict[str, list[tuple[float, float]]]:
    """(left, right) of the bars of each colour, from the picture."""
    figure = journey_figure([simulate(scenario, "reference")])
    found: dict[str, list[tuple[float, float]]] = {}
    for drawn in figure.axes[0].collections:
        colour = "#" + "".join(f"{round(255 * part):02x}" for part in drawn.get_facecolor()[0][:3])  # type: ignore[union-attr]
        found[colour] = [(float(np.min(p.vertices[:, 0])), float(np.max(p.vertices[:, 0]))) for p in drawn.get_paths()]
    return found


def test_bars_are_where_the_requests_were() -> None:
    """One slot, steps of a second, both at 0: A has its first token at 1 and its last at 3; B waits until then."""
    assert bars(textbook("orca", [3, 2])) == {
        WAITING: [(0, 0), (0, 3)], PREFILL: [(0, 1), (3, 4)], ANSWER: [(1, 3), (4, 5)]}


def test_answers_returned_whole_have_no_first_token() -> None:
    found = bars(textbook("static", [3, 2]))
    assert found[WAITING] == [(0, 0), (0, 3)]
    assert PREFILL not in found and ANSWER not in found


@pytest.mark.parametrize(("requests", "drawn"), [(MAX_SPANS, "slots"), (MAX_SPANS + 1, "journeys")])
def test_slots_are_shown_while_they_can_be_told_apart(requests: int, drawn: str) -> None:
    names = figures(simulate(textbook("orca", [1] * requests), "reference"))
    assert drawn in names and len({"slots", "journeys"} & set(names)) == 1
