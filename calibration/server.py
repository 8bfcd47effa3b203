"""What a user says of a server whose result file names no settings: model, GPU, engine, limits -> a measured run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibration.measured import EngineSettings, MeasuredRun
from calibration.served import Served
from policies.registry import policy_named
from simulator.errors import ConfigError
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import KV_BYTES, dtype_name, load_model

_LEAST_BUDGET: Final = 2048


@dataclass(frozen=True)
class Server:
    """Flags of the command line; None follows the engine's profile, as `vllm serve` without the flag does."""

    model: str
    hardware: str
    tensor_parallel: int = 1
    engine: str = "vllm-0.24"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    num_gpu_blocks: int | None = None
    weight_dtype: str = "auto"
    kv_dtype: str = "bf16"

    def settings(self, longest: int) -> EngineSettings:
        """The engine's settings for requests of up to `longest` tokens, prompt and output.

        Raises UnknownNameError for a name without a profile, ConfigError for a format or size the model has not.
        """
        engine, gpu, model = load_engine(self.engine), load_gpu(self.hardware), load_model(self.model)
        model.check_tp(self.tensor_parallel)
        seqs, budget = engine.default_limits(gpu)
        if policy_named(engine.policy).whole_prompt:
            budget = max(self.max_model_len or min(model.max_positions, longest), _LEAST_BUDGET)
        share = engine.gpu_memory_utilization if self.gpu_memory_utilization is None else self.gpu_memory_utilization
        if not 0 < share <= 1:
            raise ConfigError(f"--gpu-memory-utilization must be a number > 0 and <= 1, got {share:g}")
        if longest > model.max_positions:
            raise ConfigError(f"--model {self.model}: a request has {longest} tokens, this model has "
                              f"{model.max_positions} positions: is it the model that was served?")
        return EngineSettings(
            name=engine.path.stem if not self.engine.endswith((".yaml", ".yml")) else self.engine, version="",
            max_num_seqs=self.max_num_seqs or seqs,
            max_num_batched_tokens=self.max_num_batched_tokens or budget,
            tensor_parallel_size=self.tensor_parallel, block_size=engine.block_size,
            num_gpu_blocks_override=self.num_gpu_blocks, max_model_len=self.max_model_len,
            gpu_memory_utilization=share, dtype=model.weight_format(self.weight_dtype).dtype,
            kv_cache_dtype=dtype_name(self.kv_dtype, KV_BYTES))

    def run(self, served: Served) -> MeasuredRun:
        """The run of a result file on this server."""
        table = served.table
        return MeasuredRun(
            path=served.path.resolve(), engine=self.settings(int((table.prompt_tokens + table.output_tokens).max())),
            gpu=self.hardware, model=Path(self.model), kind=served.kind, width=served.width, requests=table, steps=None,
            measured={})
