"""Plan files that nobody should write: each refused in one line with file, line and key, before anything is run."""

from pathlib import Path

import pytest

from simulator.cli.main import main
from simulator.errors import ConfigError
from simulator.planning.deployments import deployments_from, read_plan
from simulator.planning.joint import plan_each
from simulator.planning.spec import load_plan
from simulator.planning.split import share_out
from simulator.report.plan.joint import joint_lines, render_joint
from simulator.report.plan.joint_data import joint_data, shared_data

TRAFFIC = ("workload: {arrivals: {kind: poisson, rate: 2, requests: 300}, prompt: 100, output: 10}\n"
           "slo: {ttft_p95_s: 1}\n")  # fmt: skip
BESIDE = "candidates: {gpu: h100-sxm, router: least_work, beside: {gpu: l40s, replicas: 1%s}}\n"
SPOT = "spot: {reclaims_per_hour: 1, replace_s: 60, prices: {%s}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BESIDE % ", prise: 1", r"unknown key candidates.beside.0.prise \(did you mean price\?\); known here: expert"),
        (BESIDE % ", price: 1e308", r"candidates.beside.0.price must be <= 1000000"),
        ("candidates: {gpu: {h100-sxm: 1}}\n", "candidates.gpu must be a list, got"),
        ("candidates: {gpu: mine.yaml}\n", r"candidates.gpu: mine.yaml: not a readable GPU profile"),
        ("candidates: {router: least_work, beside: [{gpu: l4, replicas: 1}, {gpu: l4, replicas: 1}]}\n",
         "must not repeat a value, got beside 1 l4 twice"),
        ("candidates: {replicas: [5000]}\n", "candidates.replicas: must be <= 4096, got 5000"),
        ("survive: 5000\n", "survive must be < 4096, got 5000"),
        ("survive: 4090\n", "survive must be <= 4032: candidates.replicas goes to 64"),
        ("prices: {h100-sxm: 1e308}\n", "prices.h100-sxm must be <= 1000000 USD per GPU and hour"),
        ("prices: {h100: 1, h100-sxm: 2}\n", "prices.h100-sxm: the price of h100-sxm is given twice, as h100 and as"),
        ("reserved_prices: {h100: 1, h100-sxm: 2}\n", "reserved_prices.h100-sxm: the price of h100-sxm is given twice"),
        (SPOT % "h100: 1, h100-sxm: 2", "spot.prices.h100-sxm: the price of h100-sxm is given twice"),
        (SPOT % "h100: 1e308", "spot.prices.h100 must be <= 1000000"),
        ("engine: {name: vllm-0.24, lora: {adapters: 1}}\ncandidates: {max_loras: [1000000000]}\n",
         "candidates.max_loras: must be <= 1024, got 1000000000"),
        ("step_s: 1\ncandidates: {gpu: unit, router: least_work, beside: {gpu: l40s, replicas: 1}}\n",
         "step_s has no effect on a real GPU"),
        ("deployments: {a: {}}\nname: [x]\n", r"name must be a text, got \['x'\]"),
        ("deployments: {a: {}}\ndescription: {x: y}\n", "description must be a text, got"),
        ("deployments: {a--b: {}}\n", "accepted are names of lower-case letters, digits and single -"),
        ("deployments: {a: {3: 4}}\n", "3 must be a text, got 3"),
        ("candidates: {max_num_seqs: 8}\ndeployments: {a: {candidates: {max_num_seqs: 16}}}\n",
         "candidates.max_num_seqs has no effect: every deployment has its own"),
        ("prices: {h100-sxm: 1}\ndeployments: {a: {prices: {h100-sxm: 2}}, b: {candidates: {gpu: l40s}}}\n",
         "prices.h100-sxm has no effect"),
        ("candidates: {router: least_work}\n"
         "deployments: {a-own: {}, a: {candidates: {beside: {gpu: l4, replicas: 1}}}}\n",
         "deployments.a: a Deployment of a-own is called a-own as one of it is"),
        ("candidates: {router: least_work, beside: {gpu: l4, replicas: 1}}\n"
         f"deployments: {{{'a' * 50}-x: {{}}, {'a' * 50}-y: {{}}}}\n", "accepted: another name"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(TRAFFIC + text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as error:
        read_plan(file)
    assert str(error.value).startswith(f"{file}:") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        (TRAFFIC.replace("95", "99.9"), "plan.yaml:2: slo.ttft_p99.9_s: 300 requests cannot"),
        (TRAFFIC + "reserved_prices:\n  h100-sxm: 1\n", "plan.yaml:3: reserved_prices has no effect: the req"),
        (TRAFFIC + "deployments:\n  a: {}\n  b:\n    slo:\n      tpot_p50_s: 1\n      classes:\n        x:\n"
         "          ttft_p50_s: 1\n", "plan.yaml:10: slo.classes.x.ttft_p50_s: no request is of class 'x'"),
    ],
)
def test_what_the_traffic_does_not_allow_is_said_where_it_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, begins: str
) -> None:
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    assert main(["plan", str(tmp_path / "plan.yaml"), "--jobs", "1", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path}/{begins}") and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_name_does_not_steer_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(TRAFFIC + 'name: "a\\e[2Jb"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"plan.yaml:3: a text must hold no control codes of a terminal"):
        read_plan(file)


def test_a_search_that_was_stopped_claims_no_more_than_it_saw() -> None:
    """After so few runs what is left over could well be of use, and no level is known."""
    traffic = {"arrivals": {"kind": "poisson", "rate": 10, "requests": 300}, "prompt": 700, "output": 60}
    asked = {"workload": traffic, "slo": {"ttft_p50_s": 1}, "max_model_len": 4096, "budget": {"gpus": 9},
             "search": {"max_simulations": 18}, "deployments": {"a": {}, "b": {"candidates": {"gpu": "l40s"}}}}
    data = shared_data(share_out(deployments_from(asked), jobs=1))
    assert data["stopped"] and data["common"]["left"] > 0
    said = "\n".join(joint_lines(data))
    assert "left over so far." in said and "gets further" not in said and "; ." not in said


def test_no_budget_is_none(tmp_path: Path) -> None:
    """`budget: null` takes a budget back, as `--set budget=null` does."""
    file = tmp_path / "plan.yaml"
    file.write_text(TRAFFIC + "deployments: {a: {}}\nbudget: {gpus: 3}\n", encoding="utf-8")
    assert read_plan(file).budget is not None and read_plan(file, ["budget=null"]).budget is None


def test_what_is_there_is_named_and_priced_apart() -> None:
    """Two L40S do for one deployment: none of its own GPUs is named, and only the other one's is bought."""
    traffic = {"arrivals": {"kind": "poisson", "rate": 2, "requests": 300}, "prompt": 100, "output": 10}
    old: dict[str, object] = {"gpu": "l40s", "replicas": 2, "price": 0}
    there = {"router": "least_work", "beside": old}
    asked = {"workload": traffic, "slo": {"ttft_p95_s": 1}, "max_model_len": 4096, "name": "<b>both</b>",
             "search": {"batch_limits": False, "replications": 2}, "prices": {"h100-sxm": 3},
             "deployments": {"new": {}, "old": {"candidates": there}}}  # fmt: skip
    data = joint_data(plan_each(deployments_from(asked), jobs=1, explain=False))
    assert "Buy 1 GPU beside 2 paid for: new 1 x h100-sxm, old 2 x l40s (paid for); 3.00" in joint_lines(data)[0]
    assert "<b>both" not in render_joint(data) and not data["price_assumed"]
    del old["price"]
    data = joint_data(plan_each(deployments_from(asked), jobs=1, explain=False))
    assert data["price_assumed"] and "old 2 x l40s; 4.58 USD/h (example prices)" in joint_lines(data)[0]


def test_prices_of_other_gpus_are_left_out_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A list of prices serves many plans; what is no GPU at all is a typing error."""
    file = tmp_path / "plan.yaml"
    prices = "{h100: 2.5, l40s: 0.8, a100: 1.2}"
    file.write_text(f"{TRAFFIC}prices: {prices}\nreserved_prices: {prices}\n{SPOT % prices[1:-1]}", encoding="utf-8")
    spec = load_plan(file)
    assert spec.prices == spec.reserved_prices == spec.spot.prices == {"h100": 2.5}
    assert caplog.messages == [f"{key} left out: no candidate has this GPU: l40s, a100"
                               for key in ("prices", "reserved_prices", "spot.prices")]
    caplog.clear()
    assert load_plan(file, ["candidates.gpu=l40s"]).prices == {"l40s": 0.8} and not caplog.messages
    file.write_text(f"{TRAFFIC}prices: {prices}\ncandidates: {{gpu: l40s}}\ndeployments: {{a: {{}}}}\n")
    assert read_plan(file).specs["a"].prices == {"l40s": 0.8}
    assert caplog.messages == ["prices left out: no candidate has this GPU: h100, a100"]
    file.write_text(f"{TRAFFIC}prices: {{h100: 2.5, l40: 0.8}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prices\.l40 has no effect: no such GPU"):
        load_plan(file)
