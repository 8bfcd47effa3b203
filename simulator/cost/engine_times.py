"""CPU times and graph limits of a serving engine: what the roofline `Cost` needs besides the GPU."""

from dataclasses import dataclass

from simulator.errors import ConfigError


@dataclass(frozen=True)
class EngineTimes:
    """Times in seconds. The defaults: an ideal engine (no CPU time), vLLM's graph sizes.

    Graph limits: None follows vLLM (piecewise graphs up to min(2 x max_num_seqs, 512) tokens, full graphs for
    pure decode up to max_num_seqs); 0 means no graphs (`enforce_eager`).
    """

    cpu_step_s: float = 0.0        # [s] schedule + launch of a step under CUDA graphs
    cpu_seq_s: float = 0.0         # [s/sequence] of it per scheduled sequence
    prep_step_s: float = 0.0       # [s] part of cpu_step_s before the GPU can start
    prep_seq_s: float = 0.0        # [s/sequence] part of cpu_seq_s before the GPU can start
    eager_cpu_s: float = 0.0       # [s] schedule + launch of a step whose kernels are launched one by one
    graph_max_tokens: int | None = None
    decode_graph_max: int | None = None
    frontend_in_s: float = 0.0     # [s] submission -> waiting queue
    frontend_each_s: float = 0.0   # [s/request] serial front-end time: a burst queues here
    frontend_out_s: float = 0.0    # [s] step output -> client

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"engine times: {name} must be >= 0, got {value!r}")
        if self.prep_step_s > self.cpu_step_s or self.prep_seq_s > self.cpu_seq_s:
            raise ConfigError(
                "engine times: prep_step_s and prep_seq_s must not exceed cpu_step_s and cpu_seq_s, got "
                f"{self.prep_step_s} and {self.prep_seq_s} of {self.cpu_step_s} and {self.cpu_seq_s}")

    def graph_limits(self, max_num_seqs: int) -> tuple[int, int]:
        """[tokens] the largest graph for (pure decode steps, steps with prefill) under a batch limit."""
        piecewise = min(2 * max_num_seqs, 512) if self.graph_max_tokens is None else self.graph_max_tokens
        full = min(max_num_seqs, piecewise) if self.decode_graph_max is None else self.decode_graph_max
        return max(full, piecewise), piecewise
