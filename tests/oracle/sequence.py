"""A request and a step of it, as the oracle sees them."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Seq:
    """One request. Times are ticks [ns], None = has not happened."""

    index: int
    arrival: int
    prompt: int
    output: int
    limit: int
    cached: int = 0
    pick: int = 0
    chain: tuple[int, ...] = ()
    queued: int | None = None
    scheduled: int | None = None
    first: int | None = None
    last: int | None = None
    computed: int = 0
    settled: int = 0
    ready: int = 0
    level: int = 0
    used: int = 0
    ran: int | None = None
    kept: int = 0
    planned: int = 0
    done: int = 0
    preempted: int = 0
    replica: int | None = None
    slot: int | None = None
    state: str = "future"

    @property
    def known(self) -> int:
        """[tokens] whose values the engine knows or will know when planned steps have run."""
        return self.prompt + self.planned

    @property
    def missing(self) -> int:
        """[tokens] to compute before the next token can be sampled; 0 when all asked for is planned."""
        return 0 if self.planned >= self.limit else self.known - self.computed


@dataclass
class Work:
    """What a policy decided: (sequence, tokens) pairs, and padding that is computed for nobody."""

    rows: list[tuple[Seq, int]] = field(default_factory=list)
    pad_rows: int = 0
    pad_context: int = 0
    pad_tokens: int = 0
    pad_pairs: int = 0


@dataclass
class Step:
    """A launched step: who gets a token from it and when its GPU work ends."""

    start: int
    gpu_end: int
    gets: list[Seq]
    blocks: int
