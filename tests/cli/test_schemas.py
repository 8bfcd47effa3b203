"""JSON that is written keeps to the schema that is shipped and says which; the schema names all its keys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scenarios import ROOT
from simulator.cli.main import main
from simulator.cli.schema import scenario_schema
from simulator.config import Document
from simulator.planning.budget import spend
from simulator.planning.capacity import capacity, levels_of
from simulator.planning.deployments import deployments_from
from simulator.planning.joint import plan_each
from simulator.planning.load import load_curve
from simulator.planning.plan import plan
from simulator.planning.slo_words import slo_of_words
from simulator.planning.spec import plan_from
from simulator.planning.split import share_out
from simulator.planning.whatif import asked_for, compare
from simulator.report.plan.data import plain
from simulator.report.plan.joint_data import joint_data, shared_data
from simulator.report.schemas import KINDS, schema_for
from simulator.run import simulate
from simulator.scenario.spec import Scenario, load_scenario, scenario_from
from simulator.version import SCHEMAS

HOME = Path(__file__).resolve().parents[2]
WORDS, SCENARIO_WORDS = HOME / "simulator/report/schema_words.yaml", HOME / "simulator/cli/scenario_words.yaml"
FEW = "workload.arrivals.requests=40"
SUMMARIES = {
    "chat": [FEW, "slo.ttft_s=0.2"], "chat_speculation": [FEW], "sessions": ["workload.sessions.arrivals.requests=10"],
    "agents": ["workload.sessions.arrivals.requests=10"], "fleet_length_split": [FEW], "fleet_prefill_decode": [FEW],
    "fleet_restart": [FEW], "policy_priority": [FEW], "model_window": [FEW], "wx_paged": [], "wx_four_slots": [],
    "chat_static": [FEW, "horizon_s=5"], "swap_to_host": [FEW], "prefix_system_prompts": [FEW],
    "kv_offload": ["workload.sessions.arrivals.requests=10", "kv.num_gpu_blocks=1100"],
    "code": [FEW, "load.max_in_flight=2"],
}  # fmt: skip
"""Shipped scenarios of every kind, cut short."""
TRAFFIC = {"arrivals": {"kind": "poisson", "rate": 40, "requests": 200}, "prompt": 1,
           "output": {"kind": "exponential", "mean": 10}}  # fmt: skip


def textbook() -> Scenario:
    return scenario_from({"name": "textbook", "workload": TRAFFIC, "hardware": {"gpu": "unit", "step_s": 0.001},
                          "policy": {"name": "static", "max_num_seqs": 1}})  # fmt: skip


def a_plan(**changes: Any) -> Any:
    return plan_from({"name": "textbook", "workload": TRAFFIC, "step_s": 0.001, "slo": {"queue_p95_s": 0.2},
                      "search": {"replications": 2},
                      "candidates": {"gpu": "unit", "policy": "static", "max_num_seqs": 1}} | changes)  # fmt: skip


def summaries() -> Iterator[tuple[str, Any]]:
    for name, sets in SUMMARIES.items():
        result = simulate(load_scenario(ROOT / f"{name}.yaml", sets), "reference")
        yield "summary", result.summary | {"host_sensitivity": result.host_sensitivity}


def answers() -> Iterator[tuple[str, Any]]:
    yield "load", load_curve(textbook(), "rate", [20, 90, 500], replications=2)
    yield "load", load_curve(textbook(), "concurrency", [1, 3], replications=1)
    for words in ("p95 ttft < 200 ms", "p95 ttft < 1 us"):
        yield "capacity", capacity(textbook(), levels_of(textbook(), slo_of_words([words])), growth=[10.0])
    chat = {"workload": {"arrivals": {"kind": "poisson", "rate": 5, "requests": 60}, "prompt": 500, "output": 50},
            "max_model_len": 2048, "slo": {"ttft_p50_s": 1}}  # fmt: skip
    yield "plan", plain(plan(plan_from(chat | {"search": {"replications": 2}, "candidates": {
        "gpu": ["h100-sxm", "l4"], "tensor_parallel": [1, 2], "replicas": {"max": 4}}}), jobs=1))
    yield "plan", plain(plan(a_plan(slo={"queue_p95_s": 1e-6}, candidates={
        "gpu": "unit", "policy": "static", "max_num_seqs": 1, "replicas": {"max": 1}}), jobs=1))
    yield "budget", spend(a_plan(budget={"replicas": 2}, growth_pct_per_month=[5]), jobs=1)
    yield "budget", spend(a_plan(budget={"replicas": 1}, slo={"queue_p95_s": 1e-6}), jobs=1)
    two = {"name": "two", "workload": TRAFFIC, "step_s": 0.001, "search": {"replications": 2}, "candidates": {
        "gpu": "unit", "policy": "static", "max_num_seqs": 1, "replicas": {"max": 3}},
        "deployments": {"a": {"slo": {"queue_p95_s": 0.2}}, "b": {"slo": {"queue_p95_s": 1e-6}}}}  # fmt: skip
    yield "deployments", joint_data(plan_each(deployments_from(two), jobs=1))
    two["deployments"]["b"] = {"slo": {"queue_p95_s": 0.1}}
    yield "deployments", shared_data(share_out(deployments_from(two | {"budget": {"gpus": 3}}), jobs=1))
    yield "deployments", shared_data(share_out(deployments_from(two | {"budget": {"gpus": 1}}), jobs=1))
    overlays = {"replications": 2, "overlays": [{"name": "twice", "traffic": 2}, {"name": "ten", "traffic": 10}]}
    yield "whatif", compare(asked_for(textbook(), Document.of_data(overlays, "overlays")), jobs=1)


def closed(schema: Any) -> Any:
    """The schema with no other keys than those it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if "properties" in schema and "type" in schema else inner


@pytest.mark.parametrize("made", [summaries, answers])
def test_what_is_written_keeps_to_its_schema(made: Any) -> None:
    for kind, data in made():
        text = json.loads(json.dumps(data, allow_nan=False))
        assert text["schema"] == f"{kind}/{SCHEMAS[kind]}"
        jsonschema.Draft202012Validator(closed(schema_for(kind))).validate(text)


def test_a_missing_key_and_another_version_are_noticed() -> None:
    data = load_curve(textbook(), "concurrency", [1], replications=1)
    check = jsonschema.Draft202012Validator(schema_for("load"))
    for wrong in ({**data, "schema": "load/2"}, {k: v for k, v in data.items() if k != "points"},
                  {**data, "points": [{**data["points"][0], "ttft_p99_s": "0.1"}]}):
        assert not check.is_valid(wrong)
    assert check.is_valid({**data, "added_later": 1})


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        assert main(["schema", kind]) == 0
        printed = json.loads(capsys.readouterr().out)
        jsonschema.Draft202012Validator.check_schema(printed)
        assert printed == schema_for(kind)
    assert main(["schema", "plans"]) == 2
    assert "known: bench, budget, capacity, deployments, kv, load, plan, scenario" in capsys.readouterr().err


UNITS = {"gb_per_s": "[10^9 bytes/s]", "tokens_per_s": "[tokens/s]", "slope_per_s": "[requests/s",
         "per_s": "[1/s]", "_s": "[s", "_bytes": "[bytes", "_blocks": "blocks", "_pct": "[%"}
"""End of a key -> what its description holds."""


def properties(node: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, list):
        for each in node:
            yield from properties(each, place)
    if isinstance(node, dict):
        for key, part in node.get("properties", {}).items() if isinstance(node.get("properties"), dict) else ():
            yield f"{place}.{key}", part
        for key, part in node.items():
            yield from properties(part, f"{place}.{key}")


@pytest.mark.parametrize("kind", [*KINDS, "scenario"])
def test_every_property_says_what_it_is_and_in_which_unit(kind: str) -> None:
    found = list(properties(scenario_schema() if kind == "scenario" else schema_for(kind), kind))
    assert len(found) > 2
    for place, part in found:
        text = part.get("description", "")
        assert text and "\n" not in text, place
        name = place.rpartition(".")[2]
        unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
        assert unit in text, f"{place}: {text}"


def test_no_description_is_of_a_key_that_there_is_not() -> None:
    for file, places in ((WORDS, [p for kind in KINDS for p, _ in properties(schema_for(kind), kind)]),
                         (SCENARIO_WORDS, [p for p, _ in properties(scenario_schema(), "scenario")])):  # fmt: skip
        keys = {place.rpartition(".")[2] for place in places}
        said = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert [name for name in said if name.rpartition(".")[2] not in keys] == []
