"""Speculative decoding in a scenario: engine.speculation -> who drafts, the limits it brings, the draws of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from policies.registry import POLICIES, Policy
from simulator.config import Section
from simulator.engines.world import Acceptance
from simulator.errors import ConfigError
from simulator.profiles.beside import model_beside
from simulator.profiles.model import ModelShape, load_model
from simulator.profiles.speculation import NGRAM, Speculation, chances_of_length, check_chances, constant_chances
from simulator.state import Limits
from simulator.workload.streams import stream

Chance = Annotated[float, Field(ge=0, le=1)]


class SpeculationSpec(Section):
    """Who drafts tokens, how many, and how many of them are right: `acceptance`, or the mean tokens of a step."""

    method: Literal["eagle3", "draft_model", "ngram"]
    tokens: int = Field(ge=1, le=32, description="drafted after each step of a sequence")
    acceptance: Chance | list[Chance] | None = Field(
        default=None, description="chance that a draft is right when those before it are; or, as vLLM's "
        "synthetic_acceptance_rates, one chance per draft that it and all before it are")
    tokens_per_step: float | None = Field(default=None, ge=1, le=33, description="mean tokens a step yields, instead")
    draft: str | None = Field(default=None, description="the draft's shape: a name or a config.json")

    @model_validator(mode="after")
    def _consistent(self) -> "SpeculationSpec":
        if (self.acceptance is None) == (self.tokens_per_step is None):
            raise ValueError("give acceptance or tokens_per_step, one of the two")
        if isinstance(self.acceptance, list):
            try:
                check_chances(self.acceptance, self.tokens)
            except ConfigError as error:
                raise ValueError(f"acceptance {error}") from None
        if self.tokens_per_step is not None and self.tokens_per_step > 1 + self.tokens:
            raise ValueError(f"tokens_per_step must be <= 1 + tokens = {1 + self.tokens}, got {self.tokens_per_step}")
        if self.method == NGRAM and self.draft is not None:
            raise ValueError("draft has no effect on ngram, which finds its drafts in the text")
        return self

    @property
    def chances(self) -> tuple[float, ...]:
        """As Speculation has them."""
        if self.tokens_per_step is not None:
            return chances_of_length(self.tokens_per_step, self.tokens)
        if isinstance(self.acceptance, list):
            return tuple(self.acceptance)
        return constant_chances(self.acceptance or 0.0, self.tokens)


def speculation_of(spec: SpeculationSpec, base: Path, textbook: bool) -> Speculation:
    """The section with its draft looked up, from folder `base`; a textbook GPU needs none. Raises ServecastError."""
    draft = None
    if spec.draft is not None:
        draft = load_model(model_beside(base, spec.draft))
    elif spec.method != NGRAM and not textbook:
        raise ConfigError(f"{spec.method} needs draft: the draft model's name or config.json")
    return Speculation(spec.method, spec.tokens, spec.chances, draft)


def chosen(spec: SpeculationSpec | None, base: Path, engine: str, policy: Policy, model: ModelShape, layout: str,
           cost_model: str, tp: int) -> Speculation | None:
    """Who drafts, with draft, engine and policy checked. Raises ServecastError where that is not modelled."""
    if spec is None:
        return None
    check_engine(policy, engine, layout, cost_model)
    speculation = speculation_of(spec, base, engine == "unit")
    speculation.check(model, tp)
    return speculation


def check_engine(policy: Policy, engine: str, layout: str, cost_model: str) -> None:
    """Raise ConfigError where drafts are not modelled."""
    if not policy.drafts or layout != "paged":
        names = ", ".join(each.name for each in POLICIES.values() if each.drafts)
        raise ConfigError(f"needs layout: paged and a policy that plans drafts ({names}), got {layout} and "
                          f"{policy.name}")
    if engine not in ("vllm", "unit"):
        raise ConfigError(f"is modelled as vLLM does it, not {engine}")
    if cost_model == "roofline":
        raise ConfigError("the step times of drafts are not modelled (cost_model: roofline)")


def check_pools(place: str, speculations: Sequence[Speculation | None]) -> None:
    """Raise ConfigError where pools draft in different ways: the draws of a run are for one."""
    if len(set(speculations)) > 1:
        raise ConfigError(f"{place} must be the same in all pools")


def kept_back(speculation: Speculation | None, seqs: int) -> int:
    """[tokens] of the budget kept back for drafts of up to `seqs` sequences."""
    return speculation.slots_per_sequence * seqs if speculation else 0


def check_budget(speculation: Speculation | None, budget: int, seqs: int) -> None:
    """Raise ConfigError where what is kept back for drafts leaves no token of the budget."""
    if speculation and budget - kept_back(speculation, seqs) < 1:
        raise ConfigError(f"{speculation.method} keeps a token of max_num_batched_tokens ({budget}) back for each of "
                          f"max_num_seqs ({seqs}) sequences, which leaves none")


def with_drafts(limits: Limits, speculation: Speculation | None) -> Limits:
    """The limits an engine works under when it drafts. Raises ConfigError where layers have a window in use."""
    if speculation is None:
        return limits
    if limits.window > 0:
        raise ConfigError("sliding windows shorter than max_model_len are not modelled together with drafts")
    budget = limits.max_num_batched_tokens - kept_back(speculation, limits.max_num_seqs)
    return limits._replace(max_num_batched_tokens=budget, draft_tokens=speculation.tokens,
                           lookahead=speculation.lookahead, rehearse=int(speculation.rehearse))


def acceptance_of(speculation: Speculation, seed: int, replication: int, arrays: bool) -> Acceptance:
    """The chances and the random numbers of one run, for an array job or a list job."""
    salts = stream(seed, "speculation", replication).integers(0, 2**32, size=2)
    chances = np.array(speculation.words, dtype=np.int64)
    return Acceptance(salts, chances) if arrays else Acceptance(salts.tolist(), chances.tolist())
