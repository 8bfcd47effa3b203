"""Several deployments: the sum of plans made apart, every split of a budget tried, M/M/1, what is refused."""

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from simulator.cli.main import main
from simulator.errors import ConfigError
from simulator.planning.bounds import Ready, StepError
from simulator.planning.budget import spend
from simulator.planning.candidate import Candidate
from simulator.planning.deployments import Deployments, deployments_from, read_plan
from simulator.planning.joint import plan_each
from simulator.planning.news import News
from simulator.planning.part import Option, Part
from simulator.planning.plan import plan
from simulator.planning.spec import load_plan, plan_from
from simulator.planning.split import Shared, Splitting, share_out
from simulator.report.plan.joint import joint_lines, manifests, render_joint, write_joint
from simulator.report.plan.joint_data import joint_data, shared_data
from simulator.report.schemas import schema_for
from tests.plan.test_load import mm1_rate

STEP = 0.001
SERVICE = {"short": 10, "middle": 20, "long": 40}
"""Mean tokens of an answer [ms of a server]."""
RATE = {"short": 120.0, "middle": 35.0, "long": 40.0}
SECOND = {"gpu": "unit", "policy": "static", "max_num_seqs": 1, "router": "random"}


def queue(name: str, requests: int = 8_000) -> dict[str, Any]:
    """Servers of one request each, exponential answers: M/M/1 behind a random router."""
    return {"workload": {"arrivals": {"kind": "poisson", "rate": RATE[name], "requests": requests}, "prompt": 1,
                         "output": {"kind": "exponential", "mean": SERVICE[name]}},
            "slo": {"queue_p95_s": 5.3 * SERVICE[name] * STEP}}  # fmt: skip


def textbook(**changes: Any) -> dict[str, Any]:
    return {"name": "three", "step_s": STEP, "max_model_len": 100_000, "warmup_fraction": 0.1, "candidates": SECOND,
            "deployments": {name: queue(name) for name in SERVICE}} | changes  # fmt: skip


def wall(name: str) -> float:
    """Multiple of its traffic that one server carries, by theory; the random router splits Poisson arrivals."""
    return mm1_rate(SERVICE[name] * STEP, 5.3 * SERVICE[name] * STEP) / RATE[name]


@pytest.mark.parametrize("budget", [None, {"gpus": 7}])
@pytest.mark.parametrize("where", ["own", "common", "budget"])
def test_keys_that_a_refusal_offers_are_not_refused_for_standing_there(where: str, budget: Any) -> None:
    """Whatever else is wrong with it, no offered key belongs beside the deployments or has no meaning with them."""
    if where == "budget" and budget is None:
        return

    def message(key: str) -> str:
        data = textbook(**({"budget": dict(budget)} if budget else {}))
        place = {"own": data["deployments"]["short"], "common": data, "budget": data.get("budget")}[where]
        assert place is not None
        if key not in place:
            place[key] = 7
        with pytest.raises(ConfigError) as refused:
            deployments_from(data)
            raise ConfigError("accepted")
        return str(refused.value)

    offered = message("no_such_key").partition("known here: ")[2].partition(" (in")[0].split(", ")
    assert len(offered) >= 2
    for key in offered:
        assert not any(words in message(key) for words in ("is one for all", "counted together", "unknown key")), key


def test_the_best_split_of_a_budget_is_that_of_theory() -> None:
    """Every split of 7 servers by M/M/1: the best one, what it carries, and what one, two and three more would."""
    best = {}
    for gpus in range(7, 12):
        splits = [s for s in itertools.product(range(1, gpus), repeat=3) if sum(s) == gpus]
        walls = {s: min(n * wall(name) for n, name in zip(s, SERVICE, strict=True)) for s in splits}
        best[gpus] = max(splits, key=lambda s, walls=walls: walls[s]), max(walls.values())
    shared = share_out(deployments_from(textbook(budget={"gpus": 7})), jobs=1)
    data = shared_data(shared)
    split, carries = best[7]
    assert tuple(row["gpus"] for row in data["deployments"]) == split
    assert data["common"]["low"] <= carries <= data["common"]["high"]
    for row, (name, n) in zip(data["deployments"], zip(SERVICE, split, strict=True), strict=True):
        assert row["low"] <= n * wall(name) <= row["high"]
    assert data["gpus"] == 7 and data["feasible"]
    rising = [gpus for gpus in range(8, 12) if best[gpus][1] > best[gpus - 1][1]]
    assert [row["gpus"] for row in data["more"]][:2] == rising[:2]
    need = sum(math.ceil(1 / wall(name)) for name in SERVICE)
    assert data["needs"]["gpus"] == need
    assert f"7 GPUs carry {data['common']['carries']:.2f} times" in joint_lines(data)[0]
    for times in (data["common"]["carries"], 0.9, 1.1):
        page = render_joint(data | {"common": data["common"] | {"carries": times}})
        assert ("verdict overloaded" in page, "verdict stable" in page) == (times < 1, times >= 1)


def test_what_is_left_over_is_told_from_a_cap_on_replicas() -> None:
    """By theory a server carries 0.83 (short) and 1.43 times (middle) the same: of two each short is at its wall first.
    Where it is served by two or four, five servers carry most as two and two, and the fifth helps nobody."""
    two = {name: queue(name, 1_000) for name in ("short", "middle")}
    capped = textbook(deployments=two, candidates=SECOND | {"replicas": [1, 2]}, budget={"gpus": 9})
    data = shared_data(share_out(deployments_from(capped), jobs=1, explain=False))
    assert data["common"]["first"] == "short" and data["common"]["capped"]
    left = 9 - data["gpus"]
    assert data["common"]["left"] == left
    assert f"{left} GPUs are left over: short is allowed no more replicas (candidates.replicas)." in joint_lines(data)
    two["short"] |= {"candidates": {"total_gpus": [2, 4]}}
    pairs = textbook(deployments=two, budget={"gpus": 5})
    data = shared_data(share_out(deployments_from(pairs), jobs=1, explain=False))
    assert [row["gpus"] for row in data["deployments"]] == [2, 2] and not data["common"]["capped"]
    said = joint_lines(data)
    assert "1 GPU is left over: no deployment that is at its wall gets further with it." in said
    assert said[0].startswith("4 of the 5 GPUs carry ")
    used = {"split": [2, 2], "gpus": 4, "kinds": ["unit", "unit"], "budget": 4.0}
    more = data | {"needs": used, "common": data["common"] | {"carries": 1.004}}
    assert "The traffic as it is takes just as many: 4 GPUs." in joint_lines(more)


def test_what_the_step_times_of_each_model_stand_on_is_said() -> None:
    """Two models with marks of their own; what was not measured of both is said once."""
    two = {name: queue(name, 300) for name in ("short", "middle")}
    asked = deployments_from(textbook(deployments=two, budget={"gpus": 4}))
    data = shared_data(share_out(asked, jobs=1, explain=False))
    assert "Step times are a textbook's: they have no error." in joint_lines(data)
    for row, mark, error, beyond in zip(data["deployments"], ("fitted", "measured"), (0.08, 0.05),
                                        (["a", "<b>"], ["a"]), strict=True):
        row["trust"] = {"mark": mark, "step_time_error": error, "not_measured": beyond}
    assert joint_lines(data)[-1] == (
        "Step times, in brackets how far they may be off: short fitted (8.0 %), middle measured (5.0 %). "
        "2 notes on what was not measured: in the report.")
    page = render_joint(data).replace("\xa0", " ")
    assert "<li>Step times of short: fitted, they may be off by 8.0 %.</li>" in page
    assert "<li>Not measured, short, middle: a.</li>" in page and "<li>Not measured, short: &lt;b&gt;.</li>" in page
    assert "What was not modelled" in page


def test_every_split_as_budgets_of_their_own() -> None:
    """Each deployment planned alone with one to four GPUs: the best of the splits of five, to the last digit."""
    asked = textbook(deployments={name: queue(name, 1_000) for name in ("short", "long")}, budget={"gpus": 5})
    found = shared_data(share_out(deployments_from(asked), jobs=1, explain=False))
    common = {k: v for k, v in asked.items() if k != "deployments"} | {"search": {"batch_limits": False}}
    carries = {}
    for name, own in asked["deployments"].items():
        for gpus in range(1, 5):
            alone = spend(plan_from(common | own | {"budget": {"gpus": gpus}}), jobs=1, explain=False)
            carries[name, gpus] = alone["best"]["carries"] / alone["traffic"]
    best = max(min(carries["short", n], carries["long", 5 - n]) for n in range(1, 5))
    assert found["common"]["carries"] == pytest.approx(best, rel=1e-12)
    assert {row["name"]: row["carries"] for row in found["deployments"]} == pytest.approx(
        {row["name"]: carries[row["name"], row["gpus"]] for row in found["deployments"]}, rel=1e-12)


class Table(Part):
    """A deployment whose fleets carry what a table says; counts the looks."""

    def __init__(self, name: str, walls: Sequence[Mapping[int, float]], each: Sequence[int]) -> None:
        self.name, self.reason, self.looks = name, "", 0
        self.walls = {f"c{k}": table for k, table in enumerate(walls)}
        self.options = [Option(Ready(_candidate(label), None, StepError(0.0, "")), float(cost).__mul__, 0,
                               sorted(table))
                        for (label, table), cost in zip(self.walls.items(), each, strict=True)]  # fmt: skip

    def look(self, option: Option, serving: int) -> None:
        assert serving not in option.seen
        self.looks += 1
        option.seen[serving] = self.walls[option.found.candidate.gpu][serving]

    def first(self, option: Option, most: float) -> int:
        return option.counts[len(option.counts) // 2]

    def _beneath(self, option: Option, serving: int, target: float) -> bool:
        return False


def _candidate(name: str) -> Candidate:
    return Candidate(name, 1, None, None, None, "bf16", "bf16", "round_robin")


def test_no_split_of_a_budget_carries_more_than_the_one_found() -> None:
    """Two or three deployments, one to three candidates each, walls that rise unevenly: every split is tried."""
    rng, looks, fleets = random.Random(7), 0, 0
    for _ in range(300):
        tables, costs = [], []
        for _ in range(rng.choice((2, 3))):
            kinds = rng.choice((1, 2, 3))
            costs.append([rng.choice((1, 2, 4)) for _ in range(kinds)])
            tables.append([dict(zip(range(1, 9), itertools.accumulate(rng.uniform(0.05, 1.0) for _ in range(8)),
                                    strict=True)) for _ in range(kinds)])  # fmt: skip
        budget = rng.randint(len(tables) * 4, 20)
        parts = [Table(f"d{k}", walls, each) for k, (walls, each) in enumerate(zip(tables, costs, strict=True))]
        splitting = Splitting(parts)
        assert splitting.begin(budget) is None
        found = splitting.settled(budget)
        choices = [[(n * cost, walls[n]) for walls, cost in zip(own, each, strict=True) for n in walls]
                   for own, each in zip(tables, costs, strict=True)]  # fmt: skip
        paid = [split for split in itertools.product(*choices) if sum(cost for cost, _ in split) <= budget]
        truth = max(min(carried for _, carried in split) for split in paid)
        assert found is not None and found.cost <= budget and found.growth == pytest.approx(truth)
        looks += sum(part.looks for part in parts)
        fleets += sum(len(walls) for own in tables for walls in own)
        target = rng.uniform(0.2, 0.9)
        cheapest = splitting.least(target)
        assert cheapest is not None
        assert cheapest.cost == sum(min((c for c, w in own if w >= target), default=math.inf) for own in choices)
    assert looks < 0.55 * fleets


def test_the_sum_of_plans_made_apart(tmp_path: Path) -> None:
    """None can use another's replicas: all need what each needs; spares and prices too."""
    two = {name: queue(name, 2_000) for name in ("short", "long")}
    data = textbook(deployments=two, survive=1, candidates=SECOND | {"replicas": {"max": 12}}, prices={"unit": 2.5})
    common = {k: v for k, v in data.items() if k not in ("deployments", "name")}
    apart = [plan(plan_from(common | own | {"name": name}), jobs=1, explain=False).best for name, own in two.items()]
    joint = joint_data(plan_each(deployments_from(data), jobs=1, explain=False))
    assert joint["feasible"] and all(apart)
    assert [row["replicas"] for row in joint["deployments"]] == [best.fleet.replicas for best in apart if best]
    assert joint["gpus"] == sum(best.fleet.gpus for best in apart if best)
    assert joint["usd_per_hour"] == pytest.approx(2.5 * joint["gpus"]) and joint["spare_usd_per_hour"] == 5.0
    walls = {"wall": True, "explained": True, "low": 1.05, "high": None, "breaks": "p95 queue time",
             "bottleneck": "slots"}  # fmt: skip
    rows = [row | walls | {"carries": carries} for row, carries in zip(joint["deployments"], (1.3, 1.2), strict=True)]
    said = joint_lines(joint | {"deployments": rows})
    assert "Nearest to its wall is long: 20 % more traffic (5 % to more) until p95 queue time breaks." in said
    assert "2 GPUs of that, 5.00 USD/h, are spare: short and long may each lose a replica." in said
    write_joint(joint, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    for name in ("short", "long"):
        own = json.loads((tmp_path / "out" / name / "plan.json").read_text())
        assert own["recommended"]["gpus"] == next(r["gpus"] for r in joint["deployments"] if r["name"] == name)
        assert f'href="{name}/report.html"' in page
    write_joint(joint, tmp_path / "out")  # what was written is replaced


CHAT = {"workload": {"arrivals": {"kind": "poisson", "rate": 5, "requests": 200}, "prompt": 500, "output": 50},
        "max_model_len": 2048, "slo": {"ttft_p50_s": 1}, "search": {"replications": 2},
        "candidates": {"gpu": "h100-sxm", "replicas": [1, 2]}}  # fmt: skip


def test_a_manifest_for_all_that_have_one() -> None:
    """A Deployment and a Service each, called as the deployment; of a policy that vLLM has not there is none."""
    data = CHAT | {"name": "both", "deployments": {"one": {}, "two": {"growth": 2}, "odd": {
        "candidates": {"policy": "sarathi", "tbt_s": 0.2}}}}  # fmt: skip
    joint = joint_data(plan_each(deployments_from(data), jobs=1, explain=False))
    made = [part for part in yaml.safe_load_all(manifests(joint)) if part]
    assert [(part["kind"], part["metadata"]["name"]) for part in made] == [
        ("Deployment", "one"), ("Service", "one"), ("Deployment", "two"), ("Service", "two")]  # fmt: skip
    assert "# odd: vllm 0.24" in manifests(joint)
    assert joint["deployments"][1]["traffic"] == pytest.approx(2 * joint["deployments"][0]["traffic"])


def test_replicas_that_are_there_are_paid_from_the_budget() -> None:
    """Two l40s stand beside the replicas of one deployment, at 1 USD/h each; an h100-sxm costs 3: of 11.90 USD/h these
    and three more are paid, whoever gets them."""
    own = {"gpu": "h100-sxm", "router": "least_outstanding"}
    there = own | {"beside": {"gpu": "l40s", "replicas": 2}}
    data = {k: v for k, v in CHAT.items() if k != "candidates"} | {
        "name": "two", "growth": 20, "slo": {"tpot_p50_s": 0.012}, "prices": {"h100-sxm": 3.0, "l40s": 1.0},
        "deployments": {"alone": {"candidates": own}, "there": {"candidates": there}}}  # fmt: skip
    shared = shared_data(share_out(deployments_from(data | {"budget": {"usd_per_hour": 11.9}}), jobs=1, explain=False))
    assert shared["usd_per_hour"] == 11 and shared["gpus"] == 5
    alone, mixed = shared["deployments"]
    assert mixed["usd_per_hour"] == 2 + 3 * (mixed["gpus"] - 2) and alone["usd_per_hour"] == 3 * alone["gpus"]
    assert shared["common"]["carries"] == min(alone["carries"], mixed["carries"])
    said = joint_lines(shared)
    assert f"there {mixed['gpus'] - 2} x h100-sxm and 2 x l40s" in said[0]
    own_count = mixed["replicas"] - 2
    words = "1 replica" if own_count == 1 else f"{own_count} replicas"
    assert said[-2].startswith(f"there: {words} of h100-sxm, least outstanding, beside 2 replicas of l40s")
    free = [mixed | {"beside": mixed["beside"] | {"price_usd_per_gpu_hour": 0.0}}, alone]
    assert "beside 2 paid for" in joint_lines(shared | {"budget": None, "deployments": free})[0]
    assert not list(Draft202012Validator(schema_for("deployments")).iter_errors(shared))


def test_who_cannot_be_served_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.yaml"
    broken = CHAT | {"name": "two", "deployments": {"fits": {}, "large": {"model": "llama-3.1-70b"}}}
    file.write_text(json.dumps(broken), encoding="utf-8")
    assert main(["plan", str(file), "--quick", "--no-cache", "--jobs", "1", "--out", str(tmp_path / "out")]) == 3
    text = capsys.readouterr().out
    assert "No fleet for large: " in text and "The others take 1 GPU: fits 1" in text
    assert (tmp_path / "out" / "large" / "report.html").is_file()
    assert main(["plan", str(file), "--set", "budget.gpus=8", "--quick", "--no-cache", "--jobs", "1"]) == 3
    assert "No fleet for large: " in capsys.readouterr().out
    fits = CHAT | {"name": "two", "deployments": {"fits": {}, "also": {}}, "budget": {"gpus": 1}}
    file.write_text(json.dumps(fits), encoding="utf-8")
    assert main(["plan", str(file), "--quick", "--no-cache", "--jobs", "1", "--out", str(tmp_path / "less")]) == 3
    assert "the smallest fleet of each takes 2 GPUs together (fits 1, also 1)" in capsys.readouterr().out


def interrupted(asked: Deployments, after: int) -> dict[str, Any]:
    """What is said when Ctrl-C comes after so many simulations."""

    def stop(news: News) -> None:
        if news.simulated >= after:
            raise KeyboardInterrupt

    if asked.budget is None:
        return joint_data(plan_each(asked, jobs=1, explain=False, progress=stop))
    return shared_data(share_out(asked, jobs=1, explain=False, progress=stop))


def test_an_interruption_keeps_what_is_known() -> None:
    whole = plan(plan_from(CHAT), jobs=1, explain=False)
    asked = deployments_from(CHAT | {"name": "two", "deployments": {"first": {}, "second": {}}})
    data = interrupted(asked, whole.simulated + 1)
    assert data["stopped"] == "an interruption" and data["missing"] == ["second"] and not data["feasible"]
    assert data["deployments"][0]["gpus"] == 1 and data["deployments"][1]["status"] == "not finished"
    assert "not done: second" in joint_lines(data)[-1] and render_joint(data)
    queues = {name: queue(name, 2_000) for name in SERVICE}
    budget = deployments_from(textbook(budget={"gpus": 7}, search={"replications": 2}, deployments=queues))
    counts = [interrupted(budget, after) for after in (1, 45, 60)]
    assert counts[0]["common"] is None and render_joint(counts[0])
    known = [data for data in counts if data["common"]]
    whole_split = shared_data(share_out(budget, jobs=1, explain=False))
    assert known
    for data in known:
        assert data["gpus"] <= 7 and data["stopped"] == "an interruption"
        assert data["common"]["carries"] <= whole_split["common"]["carries"] * 1.02
        assert render_joint(data)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"deployments": {}}, "deployments must map names"),
        ({"deployments": {"Chat": {}}}, "accepted are names of lower-case letters"),
        ({"deployments": {"../up": {}}}, "accepted are names of lower-case letters"),
        ({"deployments": {"a": 3}}, "deployments.a must be a mapping"),
        ({"deployments": {"a": {"budget": {"gpus": 3}}}}, "budget is one for all deployments"),
        ({"deployments": {"a": {"objective": "min_gpus"}}, "budget": {"gpus": 3}}, "objective is one for all"),
        ({"deployments": {"a": {"modle": "x"}}}, r"unknown key modle \(did you mean model.*in deployment a"),
        ({"deployments": {"a": {"model": "lama"}}}, r"model: unknown model.*\(in deployment a\)"),
        ({"deployments": {"a": {"growth": 2}, "b": {"growth": 3}}, "growth": 2}, "growth has no effect: every deploy"),
        ({"budget": {"replicas": 3}}, "replicas of different deployments cannot be counted"),
        ({"budget": {"gpus": 3}, "objective": "best_slo"}, "objective 'best_slo' is not modelled with deployments"),
        ({"budget": {"gpus": 3}, "search": {"batch_limits": True}}, "search.batch_limits is not modelled"),
        ({"prices": {"l5": 1}}, "prices.l5 has no effect: no such GPU among the candidates of any"),
        ({"deployments": {"a": {"slo": {"ttft_p99.9_s": 1}}, "b": {}}}, r"200 requests cannot.*\(in deployment a\)"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_each(deployments_from(CHAT | {"deployments": {"a": {}, "b": {}}} | changes), jobs=1)


def test_lines_of_the_file_and_sections_taken_together(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("workload: {arrivals: {kind: poisson, rate: 5, requests: 200}, prompt: 500, output: 50}\n"
                    "slo: {ttft_p50_s: 1}\nengine: vllm-0.24\nprices: {l40s: 1.5, h100-sxm: 3}\n"
                    "candidates: {gpu: l40s, max_num_seqs: 64}\ndeployments:\n  a: {}\n  b:\n"
                    "    candidates: {gpu: h100-sxm}\n    engine: {schedule_ahead: 0}\n", encoding="utf-8")  # fmt: skip
    asked = read_plan(file)
    assert isinstance(asked, Deployments)
    assert asked.specs["b"].candidates.gpu == ("h100-sxm",) and asked.specs["b"].candidates.max_num_seqs == (64,)
    assert asked.specs["b"].engine.name == "vllm-0.24" and asked.specs["b"].engine.schedule_ahead == 0
    assert asked.specs["a"].prices == {"l40s": 1.5} and asked.specs["b"].prices == {"h100-sxm": 3}
    for change, place in (("deployments.b.candidates.tensor_parallel=0", "--set: "), ("candidates.gpu=l41", "--set: ")):
        with pytest.raises(ConfigError, match=f"^{place}"):
            read_plan(file, [change])
    file.write_text(file.read_text() + "    model: lama\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"plan\.yaml:11: model: unknown"):
        read_plan(file)
    file.write_text(file.read_text().replace("64", "0"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"plan\.yaml:5: candidates\.max_num_seqs: must be >= 1"):
        read_plan(file)
    with pytest.raises(ConfigError, match=r"plan\.yaml:6: deployments are planned by `servecast plan`"):
        load_plan(file)


def test_a_wall_that_nothing_breaks_bounds_nobody() -> None:
    """Answers of one token without a queue: one deployment has no wall, the other one decides."""
    free = {"workload": {"requests": {"prompt": 1, "output": [1] * 60, "arrival_s": [10.0 * k for k in range(60)]}},
            "slo": {"ttft_p50_s": 5}, "candidates": {"max_num_seqs": 64}}  # fmt: skip
    asked = textbook(budget={"gpus": 4}, deployments={"free": free, "long": queue("long")})
    asked["search"] = {"max_rate_scale": 2.0}
    shared = share_out(deployments_from(asked), jobs=1)
    assert isinstance(shared, Shared) and shared.found is not None
    data = shared_data(shared)
    assert [row["gpus"] for row in data["deployments"]] == [1, 3]
    assert data["deployments"][0]["carries"] is None and data["common"]["first"] in ("long", None)
