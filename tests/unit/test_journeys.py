"""The picture of a busy server: a row a request, its waits where they were."""

import numpy as np
import pytest

from simulator import Scenario, scenario_from, simulate
from simulator.report.journeys import ANSWER, PREFILL, SENDING, WAITING, journey_figure
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


def test_the_kv_of_who_is_handed_over_is_sent_in_between() -> None:
    """Two tokens a second over the link: A's four go from 1 to 3 s, B's, whose first token comes at 2 s, then to 5 s. A
    decodes from 3 to 5 s, B from 5 to 7."""
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode", "policy": {"max_num_seqs": 2}}}
    found = bars(textbook("chunked", [3, 3], workload={"requests": {"output": [3, 3], "prompt": 4}}, max_model_len=16,
                          cluster={"pools": pools, "link": {"gb_per_s": 2 * 131_072 / 1e9}}))
    assert found == {WAITING: [(0, 0), (0, 1)], PREFILL: [(0, 1), (1, 2)], SENDING: [(1, 3), (2, 5)],
                     ANSWER: [(3, 5), (5, 7)]}


def test_answers_returned_whole_have_no_first_token() -> None:
    found = bars(textbook("static", [3, 2]))
    assert found[WAITING] == [(0, 0), (0, 3)]
    assert PREFILL not in found and ANSWER not in found


@pytest.mark.parametrize(("requests", "drawn"), [(MAX_SPANS, "slots"), (MAX_SPANS + 1, "journeys")])
def test_slots_are_shown_while_they_can_be_told_apart(requests: int, drawn: str) -> None:
    names = figures(simulate(textbook("orca", [1] * requests), "reference"))
    assert drawn in names and len({"slots", "journeys"} & set(names)) == 1
