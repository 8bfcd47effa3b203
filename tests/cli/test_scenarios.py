"""The shipped scenarios run, fit the schema, and show what their comments say."""

import json

import jsonschema
import numpy as np
import pytest
import yaml

from scenarios import ROOT
from simulator import load_scenario, simulate
from simulator.cli.schema import scenario_schema
from simulator.state import LOST

OTHER_KINDS = ("plan_", "sweep_", "whatif_")
"""Files of other commands; their own tests run them."""
SCENARIOS = sorted(path.stem for path in ROOT.glob("*.yaml") if not path.name.startswith(OTHER_KINDS))
NEEDS_A_FILE = ("azure_conv",)
LOSES = ("overload", "fleet_failures", "fleet_shed")
"""Scenarios in which not everybody is answered."""


def run(name, *assignments):
    return simulate(load_scenario(ROOT / f"{name}.yaml", assignments))


def steps(name, *assignments):
    return run(name, *assignments).summary["steps"]


def scheduled_s(result):
    return (np.asarray(result.requests.scheduled) / 1e9).tolist()


def last_s(result):
    return (np.asarray(result.requests.last) / 1e9).tolist()


@pytest.mark.parametrize("name", SCENARIOS)
def test_shipped_scenario_fits_the_schema_and_says_what_it_shows(name):
    text = (ROOT / f"{name}.yaml").read_text()
    data = yaml.safe_load(text)
    jsonschema.Draft202012Validator(scenario_schema()).validate(data)
    assert text.startswith("# ") and len(text.splitlines()[0]) < 130
    assert data["name"] == name


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in (*NEEDS_A_FILE, *LOSES)])
def test_shipped_scenario_runs_to_its_end(name):
    requests = run(name).summary["requests"]
    assert requests["arrived"] == requests["completed"] > 0


@pytest.mark.parametrize("limit", [64, None])
def test_overloaded_scenario_loses_requests_and_counts_them(limit):
    """With a limited queue the server refuses, without one clients give up; nobody is forgotten."""
    counts = run("overload", f"admission.max_waiting={'null' if limit is None else limit}").summary["requests"]
    lost, kept = ("rejected", "aborted") if limit else ("aborted", "rejected")
    assert counts[lost] > 0.1 * counts["arrived"] and counts[kept] == 0
    assert counts["arrived"] == counts["completed"] + counts[lost]
    assert counts["attempts"] >= counts["arrived"] + 2 * counts[lost]


@pytest.mark.parametrize("retries", [1, 0])
def test_failing_scenario_loses_requests_and_counts_them(retries):
    """Nobody is forgotten, all fates come up, and a conversation that lost a turn is over. A gateway that never submits
    again loses more."""
    done = run("fleet_failures", f"cluster.retries={retries}")
    counts, req = done.summary["requests"], done.requests
    assert counts["arrived"] == counts["completed"] + counts["lost"] + counts["aborted"] and counts["unfinished"] == 0
    assert counts["lost"] > 10 and counts["not_sent"] > 10 and counts["retried"] > 10
    assert done.summary["changes"]["requests_failed"] >= counts["lost"] * (retries + 1)
    assert (req.losses[req.status == LOST] == retries + 1).all()


def test_prefix_router_scenario_finds_what_others_compute_again():
    """Next turns go where their context is: over half as much again is found as by load alone, and first tokens come
    sooner; who goes by loads of 10 s ago sends the first turns to one replica."""
    hits, ttft = zip(*((s["kv"]["prefix_cache"]["hit_rate"], s["ttft_s"]["mean"]) for s in (
        run("fleet_prefix_router", *sets).summary for sets in (
            (), ("cluster={router: least_outstanding, replicas: 4}",), ("cluster.staleness_s=10",)))), strict=True)
    assert hits[0] > 1.5 * hits[1] and ttft[0] < ttft[1] and ttft[2] > 2 * ttft[0]


def within_targets(name, *assignments):
    return run(name, *assignments).summary["goodput"]["attained"]


def test_router_scenarios_show_what_looking_at_loads_is_worth():
    """A Kubernetes Service picks blindly; to ask two of sixteen is nearly as good as to ask all."""
    by_load = "cluster.router=least_outstanding"
    assert within_targets("fleet_kubernetes") < 0.9 < 0.95 < within_targets("fleet_kubernetes", by_load)
    two, blind, all_asked = (within_targets("fleet_power_of_two", *sets) for sets in (
        (), ("cluster.router=random",), (by_load,)))
    assert all_asked - two < 0.1 * (all_asked - blind)


def test_mixed_gpus_scenario_gives_each_what_it_can_do():
    """The H100 takes more requests than both L40S together, and more meet their targets than if each took its turn."""
    pools = run("fleet_mixed_gpus").summary["pools"]
    assert pools["new"]["requests"]["arrived"] > pools["old"]["requests"]["arrived"]
    assert within_targets("fleet_mixed_gpus") > within_targets("fleet_mixed_gpus", "cluster.router=round_robin")


def test_class_scenario_serves_each_class_with_its_model():
    result = run("fleet_classes")
    names = np.asarray(result.trace.class_names)[result.trace.cls]
    assert set(names[result.requests.replica < 3]) == {"chat"} and set(names[result.requests.replica == 3]) == {"code"}
    assert result.setup.pools["small"].model.name != result.setup.pools["large"].model.name


def test_shedding_scenario_refuses_the_less_urgent_only():
    """Chat is never refused, and most of it is answered in time; without shedding both classes are late."""
    shed, all_taken = (run("fleet_shed", *sets).summary for sets in ((), ("admission.shed=null",)))
    classes = shed["per_class"]
    assert classes["chat"]["requests"]["rejected"] == 0 < classes["batch"]["requests"]["rejected"]
    assert all_taken["requests"]["rejected"] == 0
    in_time = {name: [run["per_class"][name]["goodput"]["attained"] for run in (shed, all_taken)] for name in classes}
    assert in_time["chat"][0] > 0.85 > 0.4 > max(in_time["chat"][1], in_time["batch"][1])
    assert in_time["batch"][0] > in_time["batch"][1]


def test_layerwise_scenario_hides_the_transfer():
    """Nine tenths of it at least; first tokens, which do not wait for it, come at the same times."""
    hidden, whole = run("fleet_layerwise"), run("fleet_layerwise", "cluster.link.overlap=none")
    assert (hidden.requests.first == whole.requests.first).all()
    assert (hidden.requests.landed <= whole.requests.landed).all()
    assert hidden.summary["transfers"]["mean_s"] < 0.1 * whole.summary["transfers"]["mean_s"]


def test_conditional_scenario_hands_over_long_prompts_only():
    """Two of three prompts are short; handed over too they make the one prefill replica late."""
    done, every = run("fleet_conditional"), run("fleet_conditional", "cluster.disaggregate_from_tokens=null")
    assert ((done.requests.source >= 0) == (done.requests.prompt >= 2000)).all() and (every.requests.source >= 0).all()
    assert done.summary["goodput"]["attained"] > every.summary["goodput"]["attained"]


def test_affinity_scenario_finds_contexts_where_it_left_them():
    """A quarter more of the prompt tokens than by load alone."""
    stays, moves = (run("fleet_affinity", *sets).summary["kv"]["prefix_cache"]["hit_rate"] for sets in (
        (), ("cluster.router=least_outstanding",)))
    assert stays > 1.25 * moves


def test_kv_use_tells_of_long_answers_before_a_queue_does():
    """With fewer replica hours more requests meet their targets."""
    by_kv, by_queue = (run("fleet_scale_kv", *sets).summary for sets in (
        (), ("cluster.autoscale.metric=waiting", "cluster.autoscale.target=1")))
    assert by_kv["fleet"]["replica_hours"] < by_queue["fleet"]["replica_hours"]
    assert by_kv["goodput"]["attained"] > by_queue["goodput"]["attained"]


def test_first_tokens_order_replicas():
    fleet = run("fleet_scale_ttft").summary["fleet"]
    assert fleet["least_replicas"] == 2 < fleet["peak_replicas"] <= 6


def test_azure_scenario_replays_the_whole_trace(servecast, data_dir):
    trace = data_dir / "traces" / "AzureLLMInferenceTrace_conv.csv"
    summary = json.loads(servecast("run", "azure_conv", "--trace", trace, "--no-report", "--json").out)
    assert summary["requests"]["arrived"] == summary["requests"]["completed"] == 19_366


@pytest.mark.parametrize("data, key", [
    ({"workload": {"requests": {"output": [1]}}, "polcy": "static"}, "polcy"),
    ({"workload": {"requests": {"output": [1]}, "trace": "a.csv"}}, "trace"),
    ({"workload": {"arrivals": {"kind": "poisson", "rat": 3}, "prompt": 1, "output": 1}}, "rat"),
    ({"workload": {"requests": {"output": [1]}}, "cluster": {"replicas": 0}}, "0"),
    ({}, "workload"),
])
def test_schema_refuses_what_run_refuses(data, key):
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.Draft202012Validator(scenario_schema()).validate(data)


def test_schema_is_a_valid_schema_and_printed(servecast):
    printed = json.loads(servecast("schema").out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == scenario_schema()


@pytest.mark.parametrize("policy, expected", [("static", 14), ("orca", 10), ("chunked", 10), ("vllm_v0", 11)])
def test_four_slots(policy, expected):
    assert steps("wx_four_slots", f"policy.name={policy}") == expected


def test_four_slots_waiting_two():
    """They start after step 10 under static; in the step after 4 and finish at 8 under continuous batching."""
    assert scheduled_s(run("wx_four_slots"))[4:] == [10, 10]
    continuous = run("wx_four_slots", "policy.name=orca")
    assert scheduled_s(continuous)[4:] == [4, 4] and last_s(continuous)[4:] == [8, 8]


def test_idle_slots():
    """(5 + 200 + 3 + 150) / (4 x 200) = 44.75 %; without the wait of a batch, who waits enters at 3 and at 5."""
    result = run("wx_idle_slots")
    assert result.summary["slot_utilization"] == 0.4475 and result.summary["makespan_s"] == 200
    assert last_s(result) == [5, 200, 3, 150]
    for policy in ("orca", "chunked"):
        waiting = run("wx_idle_slots_waiting", f"policy={policy}", "policy.max_num_seqs=4")
        assert scheduled_s(waiting)[4:] == [3, 5]
    assert scheduled_s(run("wx_idle_slots_waiting"))[4:] == [200, 200]


def test_three_slots():
    """A ends with its third step; D takes its slot at 3, and the rest run on."""
    result = run("wx_three_slots")
    assert scheduled_s(result) == [0, 1, 2, 3] and last_s(result) == [3, 7, 8, 7]
    slots = np.asarray(result.requests.slot)
    assert slots[3] == slots[0]


def test_pair_wastes_990_iterations():
    assert run("wx_pair_1000_10").totals["pad_rows"][0] == 990


def test_reserved_memory_is_wasted_and_paged_memory_hardly():
    """16,000 of 16,000 tokens held for two requests that come to 500 and 50; 32 + 4 blocks of 16 where paged."""
    reserved = run("wx_reserved").summary["kv"]
    assert reserved["peak_use"] == 1.0 and reserved["tokens_capacity"] == 16_000
    paged = run("wx_paged").summary["kv"]
    blocks = -(-500 // 16)
    assert paged["peak_use"] == pytest.approx(blocks / 1000), "the short one has left when the long one needs its 32nd"
    assert paged["internal_fragmentation"] < 16 / 50


def gain(name):
    """(throughput, E2E p95) gain of continuous batching over static, same slots."""
    static, continuous = (run(name, f"policy={{name: {policy}, max_num_seqs: 16}}").summary
                          for policy in ("static", "chunked"))
    return (continuous["throughput"]["output_tokens_per_s"] / static["throughput"]["output_tokens_per_s"],
            static["e2e_s"]["p95"] / continuous["e2e_s"]["p95"])


def test_helps_more_where_it_is_said_to_help_much():
    much = [gain(name) for name in SCENARIOS if name.startswith("help_much")]
    little = [gain(name) for name in SCENARIOS if name.startswith("help_little")]
    assert len(much) == len(little) == 3
    for k in (0, 1):
        assert min(each[k] for each in much) > max(each[k] for each in little)


def test_compare_prints_one_table_of_gains(servecast):
    names = [name for name in SCENARIOS if name.startswith("help_")]
    lines = servecast("compare", *names, "--policies", "static,chunked").out.splitlines()
    assert len(lines) == 2 + len(names)
    for name, line in zip(names, lines[2:], strict=True):
        assert name in line and "x " in line


def test_continuous_beats_one_at_a_time_on_the_same_arrivals():
    one, many = run("load_one_at_a_time"), run("load_continuous")
    assert np.array_equal(one.trace.arrival_ns, many.trace.arrival_ns)
    assert np.array_equal(one.trace.output, many.trace.output)
    assert one.summary["stability"]["verdict"] == "overloaded" and many.summary["stability"]["verdict"] == "stable"
    assert many.summary["e2e_s"]["p95"] < one.summary["e2e_s"]["p95"]
