"""Intervals around predictions and notes on what was not measured."""

from typing import Any

import pytest

from simulator import scenario_from, simulate
from simulator.profiles.uncertainty import load_uncertainty

REQUESTS: dict[str, Any] = {"requests": {"output": [20, 30, 40], "prompt": 100, "arrival_s": [0.0, 1.0, 2.0]}}


def summary(**more: Any) -> dict[str, Any]:
    return simulate(scenario_from({"workload": REQUESTS, "max_model_len": 4096, **more}), "reference").summary


def test_interval_holds_the_prediction_and_has_the_width_of_the_file() -> None:
    done = summary(hardware="h100-sxm", policy={"max_num_seqs": 128, "max_num_batched_tokens": 2048})
    low, high = done["trust"]["interval_90"]["ttft_s.mean"]
    assert low < done["ttft_s"]["mean"] < high
    width = load_uncertainty().half_width["ttft_mean_s"]
    assert high / done["ttft_s"]["mean"] == pytest.approx(1 + width)
    assert done["trust"]["extrapolated"] == []


def test_weaker_profiles_have_wider_intervals_and_say_what_is_scaled() -> None:
    def width(done: dict[str, Any]) -> float:
        low, high = done["trust"]["interval_90"]["tpot_s.mean"]
        return high / low

    measured, datasheet = summary(hardware="h100-sxm"), summary(hardware="b200")
    other_engine = summary(hardware="h100-sxm", engine="vllm-0.15")
    assert width(measured) < width(other_engine) < width(datasheet)
    assert any("scaled from" in line for line in datasheet["trust"]["extrapolated"])


def test_textbook_examples_have_no_interval() -> None:
    assert summary(hardware="unit")["trust"]["interval_90"] == {}
