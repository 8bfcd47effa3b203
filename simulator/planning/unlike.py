"""A pool of other replicas beside the ones that are searched for: GPUs that are there, or of another kind.

    candidates: {gpu: h100-sxm, router: least_work, beside: [null, {gpu: a100-sxm-80gb, replicas: 4, price: 0}]}

Both stand behind one router, which has to look at what each replica has to do. A number of replicas of such a fleet
counts both pools; the searched number is that of the candidate's own, from none on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field, field_validator

from policies.routers import ROUTERS
from simulator.config import Section
from simulator.planning.names import MOST_USD, gpu_name, gpu_words, limit_words
from simulator.planning.traffic import is_symmetric

OWN: Final = "own"
BESIDE: Final = "beside"
"""Pools of a fleet with candidates.beside."""
LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
FORMATS: Final = ("weight_dtype", "kv_dtype")
"""Not given: the candidate's."""


class BesideSpec(Section):
    """So many replicas of one kind, whatever the search does."""

    gpu: str
    replicas: int = Field(ge=1, le=4095)
    tensor_parallel: int = Field(default=1, ge=1)
    pipeline_parallel: int = Field(default=1, ge=1)
    expert_parallel: bool = False
    max_num_seqs: int | None = Field(default=None, ge=1, description="not given: the candidate's, as the next three")
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    price: float | None = Field(default=None, ge=0, le=MOST_USD, description="USD per GPU and hour; not given: as "
                                "prices has it, 0: paid for already")

    @field_validator("gpu", mode="after")
    @classmethod
    def _own_name(cls, value: str) -> str:
        return gpu_name(value)

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.replicas * self.tensor_parallel * self.pipeline_parallel

    @property
    def kind(self) -> str:
        """`a100-sxm-80gb, TP2`: one replica, in short."""
        parts = [
            *gpu_words(self.gpu, self.tensor_parallel, self.pipeline_parallel),
            "expert parallel" if self.expert_parallel else "",
            *limit_words(self.max_num_seqs, self.max_num_batched_tokens),
            self.weight_dtype or "",
            f"{self.kv_dtype} KV" if self.kv_dtype else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def label(self) -> str:
        """`beside 4 a100-sxm-80gb (paid for)`."""
        paid = "" if self.price is None else f" ({self.price:g} USD/h)" if self.price else " (paid for)"
        return f"beside {self.replicas} {self.kind}{paid}"

    def pool(self) -> dict[str, Any]:
        """cluster.pools.* of a scenario."""
        hardware: dict[str, Any] = {"gpu": self.gpu, "tensor_parallel": self.tensor_parallel,
                                    "pipeline_parallel": self.pipeline_parallel,
                                    "expert_parallel": self.expert_parallel}  # fmt: skip
        hardware |= {key: own for key in FORMATS if (own := getattr(self, key))}
        limits = {key: own for key in LIMITS if (own := getattr(self, key))}
        return {"replicas": self.replicas, "hardware": hardware} | ({"policy": limits} if limits else {})


def pool_label(name: str, pool: str) -> str:
    """What the Deployment of a pool is called in Kubernetes, in a plan called `name`."""
    return f"{name[:50].rstrip('-')}-{pool}"


def check_beside(pools: Sequence[BesideSpec | None], routers: Sequence[str], others: Mapping[str, Any]) -> None:
    """Raise ValueError for routers that look at no replica, and for what is not modelled with unlike pools: `others`,
    by name, where it is asked for."""
    if not any(pools):
        return
    blind = next((name for name in routers if name in ROUTERS and is_symmetric(name)), None)
    if blind is not None:
        able = ", ".join(name for name in ROUTERS if not is_symmetric(name))
        raise ValueError(f"candidates.beside needs routers that look at what each replica has to do, {blind} gives "
                         f"unlike ones equal shares; accepted for candidates.router: {able}")
    for name, asked in others.items():
        if asked:
            raise ValueError(f"{name} is not modelled with candidates.beside")
