"""Reserved and on demand: costs of a day by hand, the newsvendor's rule, and what is refused."""

import itertools

import pytest

from simulator.errors import ConfigError
from simulator.planning.mix import mixed
from simulator.planning.plan import plan
from simulator.planning.spec import plan_from
from simulator.report.plan.words import mix_words

DAY = [1] * 12 + [3] * 12


def test_a_day_by_hand() -> None:
    """Half the day one replica, half of it three. At 0.6 of the other price one is reserved: 24 x 0.6 + 12 x 2 x 1."""
    mix = mixed(DAY, 0.6, 1.0)
    assert (mix["reserved"], mix["most"]) == (1, 3)
    assert mix["usd_per_day"] == pytest.approx(38.4)
    assert mix["usd_per_day_on_demand"] == pytest.approx(12 + 36)
    assert mix["usd_per_day_reserved"] == pytest.approx(3 * 24 * 0.6)
    assert mixed(DAY, 0.4, 1.0)["reserved"] == 3  # half of the hours are more than 0.4 of them
    assert mixed(DAY * 2, 0.6, 1.0)["usd_per_day"] == pytest.approx(38.4)  # two days cost the same a day


@pytest.mark.parametrize(("reserved", "share"), list(itertools.product([0.1, 0.35, 0.5, 0.9, 1.2], [2, 5, 9])))
def test_the_kth_is_reserved_where_it_is_needed_more_often_than_the_prices_ratio(reserved: float, share: int) -> None:
    hours = [1 + (k % share) for k in range(24)]
    count = mixed(hours, reserved, 1.0)["reserved"]
    needed = [sum(n >= k for n in hours) / 24 for k in range(1, max(hours) + 1)]
    assert count == sum(part > reserved for part in needed)


def test_the_sentence() -> None:
    assert mix_words({"mix": None}) == ""
    assert mix_words({"mix": mixed(DAY, 0.6, 1.0)}) == (
        " Reserved and on demand: 1 of 3 replicas reserved, the rest by the hour, 38.40 USD a day; all by the "
        "hour 48.00, all reserved 43.20.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "reserved_prices has no effect: the requests span 0.0 h; accepted: 20 h"),
        ({"reserved_prices": {"l40s": 0.5}}, r"reserved_prices.l40s has no effect: no such GPU"),
        ({"reserved_prices": {"h100-sxm": 0}}, r"reserved_prices.h100-sxm must be > 0"),
        ({"budget": {"gpus": 4}}, "reserved_prices has no effect with a budget"),
    ],
)
def test_what_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(plan_from({
            "workload": {"arrivals": {"kind": "poisson", "rate": 10, "requests": 100}, "prompt": 10, "output": 10},
            "slo": {"ttft_p50_s": 1}, "reserved_prices": {"h100-sxm": 1.5}} | changes))  # fmt: skip
