"""Numbers for people: three digits, a unit that fits, and nothing rounded into what it is not."""

import pytest

from simulator.text import number, rate_words, restarted, seconds, several, share, times, verb


def test_a_drawn_rate_stands_beside_the_one_asked_for() -> None:
    assert rate_words(19.62, 20.0) == "20 requests/s asked for, 19.6 drawn"
    assert rate_words(39.99, 40.0) == rate_words(40.0, None) == "40 requests/s"


def test_one_of_anything_is_singular() -> None:
    assert [several(n, "GPU") for n in (0, 1, 2, 3000)] == ["0 GPUs", "1 GPU", "2 GPUs", "3,000 GPUs"]
    assert (verb(1, "was", "were"), verb(2, "was", "were"), restarted(1)) == ("was", "were", "1 request starts again")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"), (3e-9, "3 ns"), (250e-6, "250 µs"), (0.0412, "41.2 ms"), (1.0, "1 s"), (3.5, "3.5 s"),
        (0.9994, "999 ms"), (0.9996, "1 s"), (999.4, "999 s"), (999.6, "1,000 s"), (4000.0, "4,000 s"), (None, "–"),
    ],
)  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text
    assert seconds(None, "∞") == "∞"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (12345, "12,345"), (0.2345, "0.234"), (99.94, "99.9"), (99.96, "100"), (1234.5, "1,234"),
     (None, "–")],
)  # fmt: skip
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0 %"), (1.0, "100.0 %"), (0.5, "50.0 %"), (0.9999, "99.990 %"), (0.0002, "0.02 %"), (None, "–")],
)
def test_share_of_nearly_all_is_not_all(value: float | None, text: str) -> None:
    assert share(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(3.05, "3.05x"), (0.71, "0.71x"), (1 / 40, "0.025x"), (0.05, "0.050x"), (1 / 571, "0.0018x"),
     (1 / 5711, "<0.001x"), (0.0998, "0.10x"), (12.34, "12.3x"), (1234.5, "1,234x")],
)  # fmt: skip
def test_times(ratio: float, text: str) -> None:
    assert times(ratio) == text
