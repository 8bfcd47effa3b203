"""Speculative decoding of an engine: who drafts, how many tokens, how many of them are right.

Chances are as vLLM's synthetic acceptance has them (vLLM 0.24 vllm/config/speculative.py, SpeculativeConfig
.synthetic_acceptance_rates): the i-th is the chance that the first i drafts of a step are all right, so that a step
yields 1 + their sum tokens on average. Where each draft is right with chance a, that is (1 - a^(k+1)) / (1 - a)
(Leviathan et al. 2023, arXiv:2211.17192, equation 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from simulator.errors import ConfigError
from simulator.profiles.model import ModelShape

EAGLE3: Final = "eagle3"
DRAFT_MODEL: Final = "draft_model"
NGRAM: Final = "ngram"
METHODS: Final = (EAGLE3, DRAFT_MODEL, NGRAM)
WORD: Final = 2**32
"""Chances are whole numbers of 2^-32 in the engines."""


@dataclass(frozen=True)
class Speculation:
    """`tokens` drafted after each step of a sequence by `draft` (None: found in the text); `chances` one for each."""

    method: str
    tokens: int
    chances: tuple[float, ...]
    draft: ModelShape | None = field(default=None, hash=False)

    @property
    def rows(self) -> int:
        """[tokens] that a decode computes in one step: its next and the drafts."""
        return 1 + self.tokens

    @property
    def lookahead(self) -> int:
        """[tokens] KV slots kept for drafts to come: who drafts with a model writes them (vLLM 0.24
        vllm/v1/core/sched/scheduler.py, num_lookahead_tokens)."""
        return 0 if self.method == NGRAM else self.tokens

    @property
    def rehearse(self) -> bool:
        """Whether the draft needs the target's hidden states of the end of a prefix found in the cache."""
        return self.method == EAGLE3

    @property
    def slots_per_sequence(self) -> int:
        """[tokens] of the budget kept back per sequence of the batch limit (vLLM 0.24
        SpeculativeConfig.max_num_new_slots_for_drafting)."""
        return 1 if self.method == DRAFT_MODEL else 0

    @property
    def ahead(self) -> bool:
        """Whether the engine may plan ahead: drafts found by the CPU in the text must be there first (vLLM 0.24
        vllm/config/vllm.py, asynchronous scheduling is off with n-gram)."""
        return self.method != NGRAM

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens a step yields."""
        return 1.0 + sum(self.chances)

    @property
    def words(self) -> list[int]:
        """The chances in 2^-32."""
        return [round(chance * WORD) for chance in self.chances]

    def check(self, target: ModelShape, tp: int) -> None:
        """Raise ConfigError where this draft cannot work for `target`, or its step times are not modelled."""
        if target.latent:
            raise ConfigError(f"{target.name} has latent attention: its step times with drafts are not modelled")
        draft = self.draft
        if draft is None:
            return
        if bool(draft.fused_input) != (self.method == EAGLE3):
            kind = "an EAGLE-3 draft" if draft.fused_input else "a model of its own"
            raise ConfigError(f"{draft.name} is {kind}, which {self.method} does not take")
        if draft.fused_input and draft.hidden != target.hidden:
            raise ConfigError(f"{draft.name} reads hidden states of {draft.hidden}, {target.name} has {target.hidden}")
        if draft.vocab != target.vocab:
            raise ConfigError(f"{draft.name} has a vocabulary of {draft.vocab}, {target.name} of {target.vocab}")
        draft.check_tp(tp)


def constant_chances(chance: float, tokens: int) -> tuple[float, ...]:
    """Each draft is right with this chance when those before it are."""
    return tuple(chance**k for k in range(1, tokens + 1))


def chances_of_length(length: float, tokens: int) -> tuple[float, ...]:
    """Chances whose steps yield `length` tokens on average and never two lengths apart (vLLM 0.24
    SpeculativeConfig._acceptance_length_to_rates)."""
    right = length - 1.0
    return tuple(min(1.0, max(0.0, right - k)) for k in range(tokens))


def check_chances(chances: Sequence[float], tokens: int) -> None:
    """Raise ConfigError unless there is one chance per draft, none above the one before."""
    if len(chances) != tokens:
        raise ConfigError(f"must be one number or one for each of the {tokens} drafts, got {len(chances)}")
    if any(not 0 <= chance <= 1 for chance in chances) or any(
            later > earlier for earlier, later in pairwise(chances)):
        raise ConfigError(f"must be numbers from 0 to 1, none above the one before, got {list(chances)}")
