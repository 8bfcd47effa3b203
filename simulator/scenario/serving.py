"""How tokens are drawn and which adapters requests bring: checks of engine.sampling and engine.lora, what they mean."""

from simulator.errors import ConfigError
from simulator.profiles.adapters import Lora, check_lora
from simulator.profiles.engine import EngineProfile
from simulator.profiles.model import ModelShape
from simulator.profiles.reserve import check_compile_cache
from simulator.scenario.sections import LoraSpec
from simulator.scenario.spec import Scenario


def lora_of(spec: LoraSpec | None) -> Lora | None:
    """The section as the cost and memory models take it."""
    return None if spec is None else Lora(spec.max_loras, spec.rank, spec.adapters)


def check_serving(scenario: Scenario, profile: EngineProfile, model: ModelShape) -> None:
    """Raise ConfigError for a sampler or adapters that are not modelled with this engine and model, and for keys of
    hardware that have no effect."""
    if scenario.hardware.compile_cache:
        place = scenario.place("hardware.compile_cache")
        check_compile_cache(profile, place)
        if scenario.kv.num_gpu_blocks:
            raise ConfigError(f"{place} has no effect beside kv.num_gpu_blocks")
    if scenario.hardware.interconnect and scenario.hardware.gpus == 1:
        raise ConfigError(f"{scenario.place('hardware.interconnect')} has no effect on one GPU")
    engine, lora = scenario.engine, lora_of(scenario.engine.lora)
    for key, asked in (("sampling", engine.sampling != "greedy"), ("lora", lora is not None)):
        if not asked:
            continue
        place = scenario.place(f"engine.{key}")
        if scenario.cost_model == "roofline":
            raise ConfigError(f"{place} has no effect with cost_model: roofline")
        if engine.speculation:
            raise ConfigError(f"{place} is not modelled together with engine.speculation")
    if engine.sampling != "greedy" and engine.name != "vllm-0.24":
        raise ConfigError(f"{scenario.place('engine.sampling')} {engine.sampling} is modelled for engine vllm-0.24, "
                          f"where it was measured, got {engine.name}")
    if lora:
        try:
            check_lora(lora, model, scenario.hardware.tensor_parallel, engine.name)
        except ConfigError as error:
            raise ConfigError(f"{scenario.place('engine.lora')}: {error}") from None
