"""Generated workloads against theory: counts, gaps, moments; named streams; refused options."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simulator.errors import ConfigError, UnknownNameError
from simulator.workload import (
    Arrivals,
    ClassSpec,
    Generated,
    Lengths,
    generate_trace,
    make_trace,
    sample_arrivals,
    sample_lengths,
    stream,
)
from simulator.workload.prefixes import Prefixes

N = 50_000
ALPHA = 1e-3
"""Level of each distribution test; seeds are fixed, so a pass is a fact and not a matter of luck."""


def arrivals_s(**options: Any) -> np.ndarray:
    return sample_arrivals(Arrivals(**options), stream(11, "arrivals")) / 1e9


def lengths_of(n: int = N, **options: Any) -> np.ndarray:
    return sample_lengths(Lengths(**options), n, stream(12, "lengths"))


def z_of_mean(sample: np.ndarray, mean: float) -> float:
    """Distance of the sample mean from theory in standard errors."""
    return float(abs(sample.mean() - mean) / (sample.std(ddof=1) / sample.size**0.5))


def test_poisson_gaps_are_exponential_and_independent() -> None:
    gaps = np.diff(arrivals_s(kind="poisson", rate=8.0, requests=N), prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 8).cdf).pvalue > ALPHA
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4 / N**0.5


def test_poisson_counts_per_second() -> None:
    times = arrivals_s(kind="poisson", rate=5.0, duration_s=4_000)
    counts = np.bincount(times.astype(int), minlength=4_000)
    assert z_of_mean(counts, 5.0) < 3
    # Index of dispersion times (n - 1) is chi-squared with n - 1 degrees of freedom.
    dispersion = counts.var(ddof=1) / counts.mean() * (counts.size - 1)
    assert ALPHA < stats.chi2(counts.size - 1).cdf(dispersion) < 1 - ALPHA


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gamma_gaps(cv: float) -> None:
    gaps = np.diff(arrivals_s(kind="gamma", rate=4.0, cv=cv, requests=N), prepend=0.0)
    law = stats.gamma(a=1 / cv**2, scale=cv**2 / 4)
    assert z_of_mean(gaps, 0.25) < 3
    # Times are whole nanoseconds: far below that the continuous law does not apply.
    assert (
        stats.kstest(gaps[gaps > 1e-7], lambda x: (law.cdf(x) - law.cdf(1e-7)) / law.sf(1e-7)).pvalue > ALPHA
    )


def test_constant_and_burst() -> None:
    assert arrivals_s(kind="constant", rate=4.0, requests=5).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert arrivals_s(kind="constant", rate=4.0, duration_s=1.0).tolist() == [0, 0.25, 0.5, 0.75]
    assert arrivals_s(kind="burst", requests=3, start_s=2.0).tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
def test_duration_keeps_every_arrival_of_the_long_run_inside_it(kind: str) -> None:
    options = {"kind": kind, "rate": 100.0} | ({"cv": 2.0} if kind == "gamma" else {})
    long = arrivals_s(**options, requests=200_000)
    assert long[-1] > 1_000
    assert np.array_equal(arrivals_s(**options, duration_s=1_000.0), long[long < 1_000])


def test_rate_only_stretches_time() -> None:
    slow, fast = (arrivals_s(kind="poisson", rate=rate, requests=1_000) for rate in (1.0, 4.0))
    assert np.allclose(slow, 4 * fast, rtol=0, atol=1e-8)


def test_diurnal_sinusoid_counts_per_hour() -> None:
    times = arrivals_s(kind="diurnal", rate=2.0, amplitude=0.8, peak_hour=15.0, duration_s=10 * 86_400)
    counts = np.bincount((times % 86_400 / 3_600).astype(int), minlength=24)
    edges = np.arange(25) / 24 * 2 * np.pi - 2 * np.pi * 15 / 24
    expected = 10 * 2.0 * (3_600 + 0.8 * 86_400 / (2 * np.pi) * np.diff(np.sin(edges)))
    assert stats.chi2(24).sf(float(((counts - expected) ** 2 / expected).sum())) > ALPHA
    assert 14 <= counts.argmax() <= 15


@pytest.mark.parametrize(
    ("kind", "curve", "quarters"),
    [
        ("step", ((6.0, 5.0), (18.0, 1.0)), (1.0, 5.0, 5.0, 1.0)),
        # Trapezoids: 0-6 h falls from 3 to 1, 6-12 h rises to 3, 12-18 h to 5, 18-24 h falls to 3.
        ("linear", ((6.0, 1.0), (18.0, 5.0)), (2.0, 2.0, 4.0, 4.0)),
    ],
)
def test_diurnal_curve_mean_rate_by_quarter_of_the_day(
    kind: str, curve: Any, quarters: tuple[float, ...]
) -> None:
    times = arrivals_s(kind="diurnal", curve=curve, curve_kind=kind, duration_s=4 * 86_400)
    counts = np.bincount((times % 86_400 / 21_600).astype(int), minlength=4)
    expected = 4 * 21_600 * np.array(quarters)
    assert stats.chi2(4).sf(float(((counts - expected) ** 2 / expected).sum())) > ALPHA


def test_diurnal_stops_where_the_rate_is_zero() -> None:
    times = arrivals_s(
        kind="diurnal", curve=((0.0, 0.0), (12.0, 3.0)), curve_kind="step", duration_s=2 * 86_400
    )
    assert np.all(times % 86_400 >= 43_200)


@given(st.floats(0, 1), st.floats(0, 23.9), st.lists(st.floats(0, 5e5), min_size=1, max_size=20))
def test_inverse_of_the_mean_count(amplitude: float, peak: float, points: list[float]) -> None:
    curve = Arrivals("diurnal", rate=3.0, amplitude=amplitude, peak_hour=peak, requests=1).rate_curve()
    count = np.array(sorted(points))
    assert np.allclose([curve.count(t) for t in curve.inverse(count)], count, rtol=1e-9, atol=1e-6)


def test_lognormal_by_mean_and_cv() -> None:
    sample = lengths_of(kind="lognormal", mean=1_000.0, cv=0.8, n=200_000)
    assert z_of_mean(sample, 1_000.0) < 3
    sigma = np.log(1 + 0.8**2) ** 0.5
    law = stats.lognorm(s=sigma, scale=1_000 / (1 + 0.8**2) ** 0.5)
    for p in (0.1, 0.5, 0.9, 0.99):
        share = float((sample <= np.rint(law.ppf(p))).mean())
        exact = float(law.cdf(np.rint(law.ppf(p)) + 0.5))
        assert abs(share - exact) < 4 * (exact * (1 - exact) / sample.size) ** 0.5


def test_lognormal_by_median_and_sigma() -> None:
    sample = lengths_of(kind="lognormal", median=300.0, sigma=1.0)
    below = float((sample < 300).mean() + (sample == 300).mean() / 2)
    assert abs(below - 0.5) < 4 * 0.5 / N**0.5
    assert abs(np.log(sample).std() - 1.0) < 0.02


def test_exponential_with_cap() -> None:
    sample = lengths_of(kind="exponential", mean=128.0, max=512)
    assert sample.max() == 512 and sample.min() == 1
    # P(X >= cap) of the law sits at the cap.
    share, exact = float((sample == 512).mean()), float(np.exp(-511.5 / 128))
    assert abs(share - exact) < 4 * (exact / N) ** 0.5


def test_uniform_and_fixed_and_empirical() -> None:
    sample = lengths_of(kind="uniform", min=3, max=6)
    assert stats.chisquare(np.bincount(sample)[3:]).pvalue > ALPHA
    assert set(np.unique(sample)) == {3, 4, 5, 6}
    assert set(lengths_of(kind="fixed", value=7).tolist()) == {7}
    drawn = lengths_of(kind="empirical", values=np.array([2, 2, 9]))
    assert abs((drawn == 2).mean() - 2 / 3) < 4 * (2 / 9 / N) ** 0.5


@settings(max_examples=50)
@given(st.integers(1, 100), st.integers(0, 100), st.floats(0.1, 1e5), st.floats(0, 5))
def test_lengths_stay_inside_their_limits(low: int, width: int, mean: float, cv: float) -> None:
    sample = lengths_of(100, kind="lognormal", mean=mean, cv=cv, min=low, max=low + width)
    assert sample.min() >= low and sample.max() <= low + width


def mix(**changes: Any) -> Generated:
    chat = {
        "name": "chat",
        "weight": 4.0,
        "prompt": Lengths("lognormal", mean=500.0, cv=1.0),
        "output": Lengths("lognormal", mean=200.0, cv=1.0),
    }
    code = ClassSpec("code", 1.0, Lengths("fixed", value=2_000), Lengths("fixed", value=30))
    arrivals = changes.pop("arrivals", Arrivals("poisson", rate=5.0, requests=20_000))
    return Generated(arrivals, (ClassSpec(**(chat | changes)), code))


def test_class_mix_shares_and_lengths() -> None:
    trace = generate_trace(mix(), seed=3)
    share = float((trace.cls == 0).mean())
    assert abs(share - 0.8) < 4 * (0.16 / len(trace)) ** 0.5
    assert trace.class_names == ("chat", "code")
    assert set(trace.prompt[trace.cls == 1].tolist()) == {2_000}
    assert z_of_mean(trace.output[trace.cls == 0], 200.0) < 3


def test_joint_sampling_keeps_pairs() -> None:
    pool = make_trace(np.zeros(3, np.int64), [1, 2, 3], [100, 200, 300])
    trace = generate_trace(Generated(Arrivals("burst", requests=1_000), (ClassSpec(joint=pool),)), seed=1)
    assert np.array_equal(trace.output, 100 * trace.prompt)
    assert set(trace.prompt.tolist()) == {1, 2, 3}


def test_one_part_changes_and_the_draws_of_the_others_stay() -> None:
    base = generate_trace(mix(), seed=3)
    longer = generate_trace(mix(output=Lengths("fixed", value=9)), seed=3)
    assert np.array_equal(base.arrival_ns, longer.arrival_ns)
    assert np.array_equal(base.prompt, longer.prompt)
    assert np.array_equal(base.cls, longer.cls)
    assert not np.array_equal(base.output, longer.output)
    other = generate_trace(mix(arrivals=Arrivals("gamma", rate=5.0, cv=2.0, requests=20_000)), seed=3)
    assert np.array_equal(base.output, other.output)


def test_classes_draw_from_their_own_streams() -> None:
    law = Lengths("uniform", min=1, max=10_000)
    alone = [
        generate_trace(Generated(Arrivals("burst", requests=100), (ClassSpec(name, 1.0, law, law),)), seed=1)
        for name in ("a", "b")
    ]
    assert not np.array_equal(alone[0].prompt, alone[1].prompt)
    assert not np.array_equal(alone[0].prompt, alone[0].output)


def test_equal_seeds_repeat_and_replications_differ() -> None:
    first, again = (generate_trace(mix(), seed=3) for _ in range(2))
    assert first.meta.sha256 == again.meta.sha256
    others = [generate_trace(mix(), 3, replication) for replication in (1, 2)] + [generate_trace(mix(), 4)]
    assert len({first.meta.sha256, *(trace.meta.sha256 for trace in others)}) == 4


def test_streams_do_not_share_entropy_between_seed_and_replication() -> None:
    draws = {
        stream(seed, name, replication).integers(2**63)
        for seed in range(8)
        for replication in range(8)
        for name in ("a", "b", "ab", "")
    }
    assert len(draws) == 8 * 8 * 4
    big = {
        stream(2**32, "a").integers(2**63),
        stream(0, "a", 1).integers(2**63),
        stream(1, "a").integers(2**63),
    }
    assert len(big) == 3


def test_streams_are_uncorrelated() -> None:
    columns = np.array(
        [stream(5, name).standard_normal(N) for name in ("arrivals", "class", "chat/prompt", "x")]
    )
    off = np.corrcoef(columns)[np.triu_indices(4, 1)]
    assert np.abs(off).max() < 4 / N**0.5


def test_max_tokens_ends_outputs() -> None:
    workload = Generated(
        Arrivals("burst", requests=2),
        (ClassSpec(prompt=Lengths("fixed", value=5), output=Lengths("fixed", value=90)),),
        64,
    )
    trace = generate_trace(workload, 0)
    assert trace.output.tolist() == trace.max_tokens.tolist() == [64, 64]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "poisson", "rate": 0.0, "requests": 1}, r"arrivals\.rate must be > 0, got 0"),
        ({"kind": "poisson", "rate": -1.0, "requests": 1}, r"arrivals\.rate must be > 0, got -1"),
        ({"kind": "poisson", "rate": float("nan"), "requests": 1}, r"arrivals\.rate must be > 0"),
        ({"kind": "poisson", "requests": 1}, r"arrivals\.rate is needed"),
        ({"kind": "gamma", "rate": 1.0, "cv": 0.0, "requests": 1}, r"arrivals\.cv must be > 0"),
        ({"kind": "poisson", "rate": 1.0, "cv": 2.0, "requests": 1}, r"arrivals\.cv has no effect"),
        ({"kind": "burst", "rate": 1.0, "requests": 1}, r"arrivals\.rate has no effect"),
        ({"kind": "burst", "duration_s": 1.0}, r"requests is needed by kind 'burst'"),
        ({"kind": "poisson", "rate": 1.0}, "exactly one of requests and duration_s"),
        ({"kind": "poisson", "rate": 1.0, "requests": 1, "duration_s": 2.0}, "exactly one of"),
        ({"kind": "poisson", "rate": 1.0, "requests": 0}, r"arrivals\.requests must be 1\.\."),
        ({"kind": "poisson", "rate": 1.0, "duration_s": 0.0}, r"arrivals\.duration_s must be > 0"),
        ({"kind": "diurnal", "requests": 1}, "need rate"),
        ({"kind": "diurnal", "rate": 1.0, "curve": ((0, 1),), "requests": 1}, "not a mix"),
        ({"kind": "diurnal", "curve": ((0, 0.0),), "requests": 1}, "rate > 0 somewhere"),
        ({"kind": "diurnal", "curve": ((5, 1), (5, 2)), "requests": 1}, "hours must rise"),
        ({"kind": "diurnal", "rate": 1.0, "amplitude": 1.5, "requests": 1}, r"amplitude must be 0\.\.1"),
    ],
)
def test_refused_arrivals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Arrivals(**options)


def test_horizon_without_arrivals_and_beyond_the_clock() -> None:
    with pytest.raises(ConfigError, match="nothing arrives"):
        arrivals_s(kind="poisson", rate=1e-9, duration_s=1.0)
    with pytest.raises(ConfigError, match="beyond"):
        arrivals_s(kind="poisson", rate=1e-9, requests=100)
    with pytest.raises(UnknownNameError, match="poisson"):
        Arrivals("poison", rate=1.0, requests=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "fixed", "value": 0}, r"lengths\.value must be a whole number 1\.\."),
        ({"kind": "fixed"}, "is needed"),
        ({"kind": "lognormal", "mean": 5.0}, "mean and cv, or median and sigma"),
        ({"kind": "lognormal", "mean": 5.0, "cv": 1.0, "sigma": 1.0}, "mean and cv, or median and sigma"),
        ({"kind": "uniform", "min": 9, "max": 3}, r"lengths\.min must be <= lengths\.max"),
        ({"kind": "exponential", "mean": 0.0}, r"lengths\.mean must be > 0"),
        ({"kind": "exponential", "mean": 5.0, "value": 3}, r"lengths\.value has no effect"),
        ({"kind": "empirical", "values": [0, 3]}, r"lengths\.values must be 1\.\."),
        ({"kind": "empirical", "values": []}, "non-empty"),
    ],
)
def test_refused_lengths(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lengths(**options)


@pytest.mark.parametrize(("seed", "replication"), [(-1, 0), (0, -1), (1.5, 0), (True, 0), (2**128, 0)])
def test_refused_seeds(seed: Any, replication: Any) -> None:
    with pytest.raises(ConfigError):
        stream(seed, "a", replication)


@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_system_prompts_are_as_popular_as_zipf_says_and_come_before_what_is_the_requests_own(skew: float) -> None:
    prefix = Prefixes(20, Lengths("uniform", min=100, max=900), skew)
    own = ClassSpec(prompt=Lengths("lognormal", mean=300, cv=1.0), output=Lengths("fixed", value=5))
    arrivals = Arrivals("constant", rate=100.0, requests=N)
    alone, begun = (generate_trace(Generated(arrivals, (spec,)), 3) for spec in (own, replace(own, prefix=prefix)))
    opening, tokens = begun.extras.opening, begun.extras.opening_tokens
    assert opening is not None and tokens is not None
    weight = np.array([1 / k**skew for k in range(1, 21)])
    assert stats.chisquare(np.bincount(opening, minlength=20), N * weight / weight.sum()).pvalue > ALPHA
    assert np.array_equal(begun.prompt - tokens, alone.prompt)  # its own words are drawn as without
    assert all(len(set(tokens[opening == k].tolist())) == 1 for k in range(20)) and len(set(tokens.tolist())) > 10


def test_texts_of_different_classes_are_different_texts() -> None:
    spec = ClassSpec("a", prompt=Lengths("fixed", value=7), output=Lengths("fixed", value=5),
                     prefix=Prefixes(2, Lengths("fixed", value=64)))  # fmt: skip
    plain = replace(spec, name="c", prefix=None)
    trace = generate_trace(Generated(Arrivals("constant", rate=100.0, requests=500),
                                     (spec, replace(spec, name="b"), plain)), 3)  # fmt: skip
    extras = trace.extras
    assert extras.opening is not None and extras.opening_tokens is not None
    assert [sorted(set(extras.opening[trace.cls == k].tolist())) for k in range(3)] == [[0, 1], [2, 3], [-1]]
    assert [set(trace.prompt[trace.cls == k].tolist()) for k in range(3)] == [{71}, {71}, {7}]
