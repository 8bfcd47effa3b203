"""engine.speculative of a run.yaml: who drafted and how many drafts were right."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from calibration.accepted import NotModelledError
from simulator.config import shown
from simulator.errors import CalibrationError, ConfigError
from simulator.profiles.model import load_model
from simulator.profiles.speculation import METHODS, NGRAM, Speculation, chances_of_length, check_chances

KEYS: Final = ("method", "num_speculative_tokens", "acceptance_rates", "draft_model", "prompt_lookup_min",
               "prompt_lookup_max", "note")
"""Lookup lengths decide which drafts are right; how many are is given."""


def speculation_of(section: Mapping[str, Any] | None, tokens_per_step: object, answer: float, path: Path,
                   find: Any) -> Speculation | None:
    """Speculation of the run at `path`; `find` gives the place of a model file.

    Without acceptance_rates the tokens per step that clients saw stand in, for answers of `answer` tokens on average.
    Raises NotModelledError for a method or key that is not simulated, CalibrationError for a value that makes no sense.
    """
    if section is None:
        return None
    if not isinstance(section, dict):
        raise CalibrationError(f"{path}: engine.speculative must be a mapping, got {shown(section)}")
    for key in section:
        if key not in KEYS:
            raise NotModelledError(f"{path}: engine.speculative.{key} is not modelled; accepted: {', '.join(KEYS)}")
    method, tokens, rates = (section.get(key) for key in ("method", "num_speculative_tokens", "acceptance_rates"))
    if method not in METHODS:
        raise NotModelledError(f"{path}: engine.speculative.method {shown(method)} is not modelled; accepted: "
                               f"{', '.join(METHODS)}")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= 32:
        raise CalibrationError(f"{path}: engine.speculative.num_speculative_tokens must be a whole number from 1 to "
                               f"32, got {shown(tokens)}")
    draft = section.get("draft_model")
    if (method == NGRAM) != (draft is None):
        wanted = "null" if method == NGRAM else "given"
        raise CalibrationError(f"{path}: engine.speculative.draft_model must be {wanted} with {method}, got "
                               f"{shown(draft)}")
    shape = None if draft is None else load_model(find(str(draft)))
    return Speculation(method, tokens, _chances(rates, tokens_per_step, tokens, answer, path), shape)


def _chances(rates: object, seen: object, tokens: int, answer: float, path: Path) -> tuple[float, ...]:
    if rates is None:
        if isinstance(seen, bool) or not isinstance(seen, int | float) or not 1 <= seen <= 1 + tokens:
            raise CalibrationError(f"{path}: engine.speculative needs acceptance_rates, or measured.tokens_per_step "
                                   f"from 1 to {1 + tokens}, got {shown(seen)}")
        return chances_of_length(min(uncut(float(seen), answer), 1.0 + tokens), tokens)
    if not isinstance(rates, list) or any(isinstance(r, bool) or not isinstance(r, int | float) for r in rates):
        raise CalibrationError(f"{path}: engine.speculative.acceptance_rates must be numbers, got {shown(rates)}")
    try:
        check_chances(rates, tokens)
    except ConfigError as error:
        raise CalibrationError(f"{path}: engine.speculative.acceptance_rates {error}") from None
    return tuple(float(rate) for rate in rates)


def uncut(seen: float, answer: float) -> float:
    """Tokens per step as drawn, from those that clients saw: the last step of an answer is cut at its end, by
    (seen - 1) / 2 tokens on average (renewal theory: the mean overshoot of equal steps)."""
    after_first = max(answer - 1.0, 1.0)
    return seen * (1.0 + (seen - 1.0) / (2.0 * after_first))
