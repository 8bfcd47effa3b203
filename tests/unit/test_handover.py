"""Prefill and decode pools: timelines worked by hand, back-pressure, what is refused, DistServe's crossing in kind."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Scenario, scenario_from, simulate
from simulator.engines.handover import sent_by_layers
from simulator.errors import ConfigError
from simulator.report.slots import slot_figure
from simulator.report.timeline import slot_spans
from simulator.state import FINISHED, LOST
from simulator.units import NS_PER_S

HALF_A_SECOND = 2 * 131_072 / 1e9
"""[GB/s] at which a token of Llama 3.1 8B (32 layers x 2 x 8 heads x 128 x 2 bytes) takes 0.5 s."""
FAST = {"gb_per_s": 1e6}


def split(prefill: dict[str, Any], decode: dict[str, Any], link: dict[str, Any], **more: Any) -> Scenario:
    data = {"workload": {"requests": {"arrival_s": [0.0, 0.0], "prompt": [4, 4], "output": [3, 3]}},
            "hardware": "unit", "max_model_len": 16,
            "cluster": {"link": link,
                        "pools": {"p": {"role": "prefill", **prefill}, "d": {"role": "decode", **decode}}}}
    return scenario_from(data | more)


def seconds(column: Any) -> list[float]:
    return (column / NS_PER_S).tolist()


def test_two_requests_by_hand() -> None:
    """One slot for prefill: first tokens at 1 and 2 s. The link sends 4 tokens in 2 s, one request at a time: A's KV is
    there at 1 + 2 + 0.25, B's at 3 + 2 + 0.25. A decodes at 4.25 and 5.25 s, B at 6.25 and 7.25 s."""
    done = simulate(split({"policy": {"max_num_seqs": 1}}, {}, {"gb_per_s": HALF_A_SECOND, "latency_s": 0.25}),
                    "reference")
    req = done.requests
    assert seconds(req.first) == [1, 2]
    assert seconds(req.landed) == [3.25, 5.25]
    assert seconds(req.last) == [5.25, 7.25]
    assert seconds(req.itl_max) == [3.25, 4.25]
    assert done.summary["transfers"]["requests"] == 2
    assert done.summary["transfers"]["mean_s"] == pytest.approx((2.25 + 3.25) / 2)
    assert done.summary["transfers"]["gb"] == pytest.approx(8 * 131_072 / 1e9)


def layered(link: dict[str, Any], prompts: list[int], **policy: int) -> list[float]:
    """[s] when the KV of requests that all come at once is there, sent layer by layer; 32 layers, steps of a second."""
    requests = {"arrival_s": [0.0] * len(prompts), "prompt": prompts, "output": [3] * len(prompts)}
    done = simulate(split({"policy": policy}, {}, link | {"overlap": "layerwise"}, workload={"requests": requests}),
                    "reference")
    return seconds(done.requests.landed)


def test_layers_by_hand_where_the_link_is_slower_than_the_gpu() -> None:
    """The case above: A's first layer is computed at 1/32 s, and the link is busy from then on for two seconds; B's is
    computed at 1 + 1/32 and its KV follows A's. Both in one step: four seconds, A's last layer before B's."""
    link = {"gb_per_s": HALF_A_SECOND, "latency_s": 0.25}
    assert layered(link, [4, 4], max_num_seqs=1) == [2.03125 + 0.25, 4.03125 + 0.25]
    assert layered(link, [4, 4]) == [4.03125 - 2 / 32 + 0.25, 4.03125 + 0.25]


def test_layers_by_hand_where_the_link_is_faster_than_the_gpu() -> None:
    """0.5 s for the KV of a prompt, a step of 1 s: the last layer's share, 1/64 s, comes after the first token."""
    fast = {"gb_per_s": 4 * HALF_A_SECOND}
    assert layered(fast, [4, 4], max_num_seqs=1) == [1 + 1 / 64, 2 + 1 / 64]


def test_layers_of_all_chunks_go_with_the_last_one() -> None:
    """Eight tokens in steps of four: the last chunk is computed from 1 to 2 s, four seconds of KV from 1 + 1/32 on."""
    assert layered({"gb_per_s": HALF_A_SECOND}, [8], max_num_batched_tokens=4, max_num_seqs=4) == [5.03125]


@settings(max_examples=300, deadline=None)
@given(free=st.integers(0, 300), whole=st.integers(0, 400), begin=st.integers(0, 300), took=st.integers(0, 200),
       layers=st.integers(1, 9))
def test_layers_one_after_the_other(free: int, whole: int, begin: int, took: int, layers: int) -> None:
    """As a queue that is told layer by layer, but for the rounding to whole ns."""
    at = Fraction(free)
    for layer in range(1, layers + 1):
        at = max(at, begin + Fraction(took * layer, layers)) + Fraction(whole, layers)
    assert abs(sent_by_layers(free, whole, begin, begin + took, layers) - at) < 1


def test_a_long_prompt_hides_its_transfer() -> None:
    """Splitwise (ISCA 2024), section IV-C: sent in one piece, KV takes time in proportion to the prompt; layer by layer
    it is hidden behind the prompt's computation, up to what is the same for all. Llama-3.1-70B on eight H100s, 25 GB/s:
    80 layers x 2 x 8 heads x 128 x 2 bytes a token."""
    prompts, each = np.array([512, 1024, 2048, 4096]), 80 * 2 * 8 * 128 * 2 / 25e9
    lone = {"arrival_s": [0.0, 2.0, 4.0, 6.0], "prompt": prompts.tolist(), "output": [2] * 4}
    seen = {}
    for overlap in ("none", "layerwise"):
        done = simulate(split({"policy": {"max_num_batched_tokens": 8192}}, {}, {"gb_per_s": 25, "overlap": overlap},
                              workload={"requests": lone}, model="llama-3.1-70b", max_model_len=8192,
                              kv={"prefix_caching": False}, engine="vllm-0.24",
                              hardware={"gpu": "h100-sxm", "tensor_parallel": 8}), "reference")
        req = done.requests
        seen[overlap] = (req.landed - req.first + int(done.setup.cost.frontend_out_ns)) / NS_PER_S
    assert seen["none"] == pytest.approx(prompts * each, abs=2e-9)
    assert seen["layerwise"] == pytest.approx(prompts * each / 80, abs=2e-9)


def test_kv_is_held_until_a_decode_replica_admits() -> None:
    """Room for one prompt: B's prefill waits until A is admitted at the other end, at 3.25 s in the case above."""
    done = simulate(split({"kv": {"num_gpu_blocks": 8}}, {}, {"gb_per_s": HALF_A_SECOND, "latency_s": 0.25}),
                    "reference")
    assert seconds(done.requests.scheduled) == [0, 3.25]
    assert seconds(done.requests.first) == [1, 4.25]


def test_a_full_decode_replica_holds_up_prefill() -> None:
    """One slot at either end, and room for one prompt: C begins when B, whose KV waits for A's slot, is admitted."""
    requests = {"arrival_s": [0.0, 0.0, 0.0], "prompt": [4, 4, 4], "output": [6, 3, 3]}
    one = {"policy": {"max_num_seqs": 1}}
    done = simulate(split({"kv": {"num_gpu_blocks": 8}, **one}, one, FAST, workload={"requests": requests}),
                    "reference")
    # A: first at 1, decodes 1..6. B: begins when A is admitted at 1, first at 2, admitted at 6, decodes to 8.
    # C: begins when B is admitted at 6, first at 7, admitted at 8, last at 10. Sending takes nanoseconds.
    assert np.round(done.requests.first / NS_PER_S).tolist() == [1, 2, 7]
    assert np.round(done.requests.last / NS_PER_S).tolist() == [6, 8, 10]


def test_the_slot_picture_has_both_halves() -> None:
    """The case above, a second later: A is at the first from 1 to 2 s and at the other to 7, B from 2 to 3 and, when
    A's slot is free, from 7 to 9, C from 7 to 8 and from 9 to 11. Those replicas are drawn that did it all."""
    requests = {"arrival_s": [1.0, 1.0, 1.0], "prompt": [4, 4, 4], "output": [6, 3, 3]}
    one = {"policy": {"max_num_seqs": 1}, "replicas": 2}
    done = simulate(split({"kv": {"num_gpu_blocks": 8}, **one}, one, FAST, workload={"requests": requests}).updated(
        {"cluster.events": [{"at_s": 0, "kind": "drain", "pool": pool, "replica": 0, "for_s": 1000}
                            for pool in ("p", "d")]}), "reference")
    spans = slot_spans(done)
    seen = {(int(r), int(row)): (round(a / NS_PER_S), round(b / NS_PER_S)) for r, row, a, b
            in zip(spans.replica, spans.row, spans.start, spans.held, strict=True)}
    assert seen == {(1, 0): (1, 2), (1, 1): (2, 3), (1, 2): (7, 8), (3, 0): (2, 7), (3, 1): (7, 9), (3, 2): (9, 11)}
    assert not spans.slot.any()
    first, second = (ax.get_title("left") for ax in slot_figure([done]).axes)
    assert "busiest prefill replica, 1 of 4, pool p" in first and "busiest decode replica, 3 of 4, pool d" in second


def test_slots_of_first_halves_are_those_of_the_engine() -> None:
    """Answers of one token end where they began, in the slot that the engine gave them; as many first halves as there
    are tokens to come never share one."""
    requests = {"arrival_s": [0.3 * k for k in range(40)], "prompt": [4 + 3 * (k % 4) for k in range(40)],
                "output": [1 + k % 2 for k in range(40)]}
    done = simulate(split({"policy": {"max_num_seqs": 8, "max_num_batched_tokens": 8}}, {}, FAST,
                          workload={"requests": requests}), "reference")
    spans = slot_spans(done)
    there = spans.replica == 0
    one = there & (done.requests.output[spans.row] == 1)
    assert one.sum() == 20 and (spans.slot[one] == done.requests.slot[spans.row[one]]).all()
    assert len(np.unique(spans.slot[there])) > 2
    same = (spans.slot[1:] == spans.slot[:-1]) & (spans.replica[1:] == spans.replica[:-1])
    assert (spans.start[1:][same] >= spans.held[:-1][same]).all()


def test_a_free_link_and_one_request_is_one_replica() -> None:
    """With nobody else and a link that takes no time, the time line is that of one replica that does both."""
    one = {"requests": {"arrival_s": [0.0], "prompt": [40], "output": [9]}}
    whole = simulate(scenario_from({"workload": one, "hardware": "unit", "max_model_len": 64}), "reference")
    parts = simulate(split({}, {}, FAST, workload=one, max_model_len=64), "reference")
    assert parts.requests.first[0] == whole.requests.first[0]
    assert parts.requests.last[0] - whole.requests.last[0] == parts.requests.landed[0] - parts.requests.first[0] < 10


def test_short_prompts_are_served_whole() -> None:
    requests = {"arrival_s": [0.0] * 4, "prompt": [4, 5, 4, 5], "output": [3] * 4}
    scenario = split({}, {}, FAST, workload={"requests": requests})
    scenario = scenario.updated({"cluster.disaggregate_from_tokens": 5})
    done = simulate(scenario, "reference")
    assert done.requests.source.tolist() == [-1, 0, -1, 0]
    assert done.requests.replica.tolist() == [1, 1, 1, 1]
    assert {name: pool["requests"]["arrived"] for name, pool in done.summary["pools"].items()} == {"p": 2, "d": 4}


SLOW_LINK = {"gb_per_s": HALF_A_SECOND, "latency_s": 0.25}
"""Of a prompt of four tokens two seconds, and a quarter."""


def broken(at_s: float, pool: str, *arrivals: float, load: Any = None, **cluster: Any) -> Any:
    """Requests of four tokens and three, over a slow link; a crash of a replica of the pool, gone for 20 s."""
    n = len(arrivals)
    requests = {"arrival_s": list(arrivals), "prompt": [4] * n, "output": [3] * n}
    scenario = split({"kv": {"num_gpu_blocks": 8}}, {}, SLOW_LINK, workload={"requests": requests}, load=load or {})
    events = [{"at_s": at_s, "kind": "crash", "pool": pool, "for_s": 20}] if at_s else []
    return simulate(scenario.updated({"cluster.events": events} | {f"cluster.{k}": v for k, v in cluster.items()}),
                    "reference")


def test_kv_that_is_lost_with_its_replica_is_computed_again() -> None:
    """The first token is out at 1 s, its KV would be there at 3.25 s. The replica goes at 2 s: the request goes on at
    once, in a step from 2 to 3 s that computes prompt and second token."""
    done = broken(2, "p", 0.0)
    req = done.requests
    assert seconds(req.first) == [1] and seconds(req.landed) == [2] and seconds(req.last) == [4]
    assert done.totals["prefill"].tolist() == [4, 5] and done.summary["changes"]["requests_failed"] == 0
    assert done.summary["transfers"]["gb"] == 0
    whole = broken(0, "p", 0.0)
    assert whole.totals["prefill"].tolist() == [4, 0] and seconds(whole.requests.last) == [5.25]


def test_a_crash_before_the_first_token_begins_anew() -> None:
    """Lost at 0.5 s; the replica is back at 20.5 s: first token at 21.5 s, its KV at 23.75 s, the end at 25.75 s."""
    req = broken(0.5, "p", 0.0).requests
    assert [seconds(column)[0] for column in (req.first, req.landed, req.last)] == [21.5, 23.75, 25.75]


def test_a_decode_replica_that_crashes_loses_the_whole_way() -> None:
    """Decoding since 3.25 s it goes at 4 s. From 5 s on the request is computed again at the other end (6 s) and sent
    (8.25 s), waits until the decode replica is back at 24 s, and ends at 26 s."""
    done = broken(4, "d", 0.0)
    req = done.requests
    assert [seconds(column)[0] for column in (req.first, req.landed, req.last)] == [6, 8.25, 26]
    assert done.totals["failed"].tolist() == [0, 1] and done.summary["changes"]["tokens_lost"] == 1


@pytest.mark.parametrize(("at_s", "load", "freed"), [
    (0, {}, 3.25),                        # fetched
    (0, {"timeout_s": 2.5}, 2.5),         # given up on the link
    (3, {"timeout_s": 9}, 9.0),           # given up at the gateway, nobody being there to decode
])
def test_blocks_are_free_when_nobody_will_fetch_them(at_s: float, load: Any, freed: float) -> None:
    """Room for one prompt: the second begins when the first one's KV is let go."""
    req = broken(at_s, "d", 0.0, 1.0, load=load).requests
    assert seconds(req.scheduled)[1] == freed


def test_a_queue_that_is_lost_lets_its_kv_go() -> None:
    """One slot to decode, taken until 7.25 s by the first; the KV of the second has come at 6.5 s and waits. The decode
    replica goes at 7 s: the third, which had no room for its prompt, begins then."""
    requests = {"arrival_s": [0.0, 0.0, 0.0], "prompt": [4, 4, 4], "output": [5, 3, 3]}
    one = {"policy": {"max_num_seqs": 1}}
    scenario = split({"kv": {"num_gpu_blocks": 8}, **one}, one, SLOW_LINK, workload={"requests": requests})
    crash = [{"at_s": 7, "kind": "crash", "pool": "d", "for_s": 20}]
    for events, third in (([], 7.25), (crash, 7)):
        done = simulate(scenario.updated({"cluster.events": events}), "reference")
        assert seconds(done.requests.scheduled)[2] == third


def test_nobody_goes_on_where_lost_requests_are_given_up() -> None:
    """The decode replica goes at 4 s with the first, and the KV of the second on its way: that one waits for it."""
    done = broken(4, "d", 0.0, 1.0, retries=0)
    assert done.summary["requests"]["lost"] == 1 and done.requests.status.tolist() == [LOST, FINISHED]
    assert done.summary["pools"]["d"]["requests"]["lost"] == 1


@pytest.mark.parametrize(("change", "words"), [
    ({"cluster.link": None}, "cluster.link must be given"),
    ({"cluster.pools.d.role": "both"}, "belong together"),
    ({"cluster.pools.p.role": "both", "cluster.pools.d.role": "both"}, "cluster.link has no effect"),
    ({"policy.name": "orca"}, "modelled for policy.name: chunked"),
    ({"kv.layout": "contiguous"}, "modelled for kv.layout: paged"),
    ({"cluster.pools.p.kv": {"prefix_caching": True}}, "prefix cache beside prefill"),
    ({"cluster.pools.d.kv": {"num_gpu_blocks": 9}}, "room for the longest request"),
    ({"cluster.link.gb_per_s": 1e-9}, "too slow for these prompts"),
    ({"cluster.link.overlap": "chunks"}, "overlap.*'none' or 'layerwise'"),
    ({"cluster.pools.d.serves": {"max_prompt_tokens": 3}}, "served by no pool with role: decode"),
])
def test_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(split({}, {}, FAST).updated(change), "reference")


def attained(cluster: dict[str, Any], targets: list[tuple[float, float]]) -> list[float]:
    """Share of requests within each (TTFT, TPOT) [s]: prompts of 2,000 tokens, 20 a second, on two H100s."""
    workload = {"arrivals": {"kind": "poisson", "rate": 20, "requests": 250},
                "prompt": {"kind": "fixed", "value": 2000}, "output": {"kind": "fixed", "value": 60}}
    req = simulate(scenario_from({
        "seed": 3, "workload": workload, "engine": "vllm-0.24", "policy": {"max_num_batched_tokens": 2048},
        "kv": {"prefix_caching": False}, "max_model_len": 8192, "cluster": {"router": "least_outstanding", **cluster},
    }), "reference").requests  # fmt: skip
    ttft, tpot = (req.first - req.arrival) / NS_PER_S, (req.last - req.first) / (req.done - 1) / NS_PER_S
    return [float(((ttft <= first) & (tpot <= between)).mean()) for first, between in targets]


def test_which_is_better_depends_on_the_targets() -> None:
    """DistServe (OSDI 2024), section 2: prefill disturbs decode where both share a GPU, so a strict target between
    tokens is met only apart; apart, half the GPUs have to do all prefill, so a strict target on the first token with a
    loose one between tokens is met better together."""
    strict_between, strict_first = (1.0, 0.0085), (0.2, 0.05)
    together = attained({"replicas": 2}, [strict_between, strict_first])
    apart = attained({"link": {"gb_per_s": 25},
                      "pools": {"p": {"role": "prefill"}, "d": {"role": "decode"}}}, [strict_between, strict_first])
    assert apart[0] > 0.9 > 0.5 > together[0]
    assert together[1] > 0.9 > 0.5 > apart[1]
