"""Service levels in words, as they are said: `p99 ttft < 500 ms`, `mean e2e (chat) < 20 s`, `95 % ttft < 1 s`.

The keys of a plan are understood too: `ttft_p99_s=0.5`.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError

from simulator.config import shown
from simulator.errors import ConfigError
from simulator.planning.slo import METRICS, SloSpec
from simulator.scenario.limits import asked_back

UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
ACCEPTED: Final = (
    '"p99 ttft < 500 ms", "mean e2e (chat) < 20 s", "p99 ttft in the worst 300 s < 1 s", "95 % ttft < 1 s, e2e < 30 s" '
    "or a plan's key, ttft_p99_s=0.5"
)
_TIME: Final = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>us|µs|ms|s|min)"
_LEVEL: Final = re.compile(
    rf"(?P<which>p\d{{1,2}}(?:\.\d+)?|mean)\s+(?P<metric>\w+)(?:\s+time)?(?:\s*\((?P<cls>[^)]+)\))?"
    rf"(?:\s+in\s+the\s+worst\s+(?P<window>\d+(?:\.\d+)?)\s*(?P<long>s|min|h))?\s*<=?\s*{_TIME}",
    re.IGNORECASE,
)
_SHARE: Final = re.compile(r"(?P<share>\d+(?:\.\d+)?)\s*%\s+(?P<limits>.+)")
_LIMIT: Final = re.compile(rf"(?P<metric>\w+)\s*<=?\s*{_TIME}", re.IGNORECASE)
_KEY: Final = re.compile(r"(?P<key>\w+_s)\s*[=:]\s*(?P<number>\d+(?:\.\d+)?)")


def slo_of_words(words: Sequence[str]) -> SloSpec:
    """The levels of some `--slo` texts. Raises ConfigError naming the text and what is accepted."""
    targets: list[Any] = []
    attainment: dict[str, float] | None = None
    for text in words:
        if share := _SHARE.fullmatch(text.strip()):
            if attainment is not None:
                raise ConfigError(f"--slo {shown(text)}: a share of good requests may be asked once")
            attainment = {"share": float(share["share"]) / 100, **_limits(text, share["limits"])}
        else:
            targets += _levels(text)
    try:
        return SloSpec.model_validate({"targets": tuple(targets), "attainment": attainment})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--slo: {problem}; accepted: {ACCEPTED}") from None


def _levels(text: str) -> tuple[Any, ...]:
    """One level as a target."""
    if key := _KEY.fullmatch(text.strip()):
        return _parsed(text, {key["key"]: float(key["number"])})
    level = _LEVEL.fullmatch(text.strip())
    if level is None:
        raise ConfigError(f"--slo {shown(text)}: {_why(text)}; accepted: {ACCEPTED}")
    metric, limit = _metric(text, level["metric"]), _seconds(level)
    question = asked_back(f"--slo {shown(text)}", metric, limit)
    if question:
        raise ConfigError(question)
    written: dict[str, Any] = {f"{metric}_{level['which'].lower()}_s": limit}
    if level["cls"]:
        written = {"classes": {level["cls"].strip(): written}}
    if level["window"]:
        written["window_s"] = float(level["window"]) * {"s": 1, "min": 60, "h": 3600}[level["long"].lower()]
    return _parsed(text, written)


def _why(text: str) -> str:
    """What is wrong with a level that cannot be read, where that can be told."""
    limit = re.search(r"<=?\s*(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>\S*)$", text.strip())
    if limit and limit["number"].startswith("-"):
        return "the limit must be more than 0"
    if limit and not limit["unit"]:
        return f"the limit {limit['number']} needs a unit, one of {', '.join(UNITS)}"
    return "cannot be read"


def _parsed(text: str, written: dict[str, Any]) -> tuple[Any, ...]:
    try:
        return SloSpec.model_validate(written).targets
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--slo {shown(text)}: {problem}") from None


def _limits(text: str, limits: str) -> dict[str, float]:
    """`ttft < 1 s, e2e < 30 s` -> {"ttft_s": 1.0, "e2e_s": 30.0}."""
    found: dict[str, float] = {}
    for part in limits.split(","):
        limit = _LIMIT.fullmatch(part.strip())
        if limit is None:
            raise ConfigError(f"--slo {shown(text)}: {_why(part)}; accepted: {ACCEPTED}")
        found[f"{_metric(text, limit['metric'])}_s"] = _seconds(limit)
    return found


def _metric(text: str, name: str) -> str:
    if name.lower() not in METRICS:
        raise ConfigError(f"--slo {shown(text)}: unknown metric {name!r}; known: {', '.join(METRICS)}")
    return name.lower()


def _seconds(found: "re.Match[str]") -> float:
    return float(found["number"]) * UNITS[found["unit"].lower().replace("µ", "u")]
