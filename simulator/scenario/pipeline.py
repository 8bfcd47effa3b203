"""hardware.pipeline_parallel: what is modelled together with it, and the limits it brings."""

from policies.registry import POLICIES, Policy
from simulator.errors import ConfigError
from simulator.profiles.engine import EngineProfile
from simulator.profiles.model import ModelShape
from simulator.profiles.stages import largest_stage
from simulator.scenario.spec import Scenario
from simulator.state import Limits

GPUS_A_HOST = 8
"""GPUs that one server links directly: HGX and OAM boards and PCIe servers hold up to eight."""
ENGINE = ("vllm", "0.24")


def in_stages(limits: Limits, stages: int) -> Limits:
    """The limits of a pipeline: as many steps in flight as stages, one more where the engine plans ahead (vLLM 0.24
    vllm/config/vllm.py, max_concurrent_batches)."""
    if stages == 1:
        return limits
    return limits._replace(stages=stages, schedule_ahead=stages if limits.schedule_ahead else stages - 1)


def check_pipeline(scenario: Scenario, engine: EngineProfile, model: ModelShape, policy: Policy) -> None:
    """Raise ConfigError for a pipeline that is not modelled with this engine, model and policy."""
    hardware = scenario.hardware
    if hardware.pipeline_parallel == 1:
        return
    place = scenario.place("hardware.pipeline_parallel")
    try:
        largest_stage(model, hardware.pipeline_parallel)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    if hardware.gpus > GPUS_A_HOST:
        raise ConfigError(f"{place}: tensor_parallel x pipeline_parallel must be <= {GPUS_A_HOST}, the GPUs of one "
                          f"host (stages over a network are not modelled), got {hardware.gpus}")
    if (engine.name, engine.version) != ENGINE:
        raise ConfigError(f"{place}: pipeline stages are modelled as {' '.join(ENGINE)} runs them, not {engine.name} "
                          f"{engine.version}")
    if not policy.pipelines:
        names = ", ".join(each.name for each in POLICIES.values() if each.pipelines)
        raise ConfigError(f"{place}: needs a policy that lets requests rest between tokens ({names}), got "
                          f"{policy.name}")
    if engine.schedule_ahead > 1:
        raise ConfigError(f"{place}: engine.schedule_ahead must be 0 or 1 with pipeline stages, which plan as many "
                          f"steps besides, got {engine.schedule_ahead}")
    if engine.schedule_ahead and engine.older_runner(model.architectures):
        raise ConfigError(f"{place}: {', '.join(model.architectures)} runs on the older model runner, whose pipelines "
                          "are modelled without asynchronous scheduling only: engine.schedule_ahead: 0")
    for key, given in (("engine.speculation", scenario.engine.speculation), ("engine.lora", scenario.engine.lora),
                       ("kv.offload", scenario.kv.offload),
                       ("admission.predicted_ttft_s", scenario.admission.predicted_ttft_s),
                       ("cost_model: roofline", scenario.cost_model == "roofline")):
        if given:
            raise ConfigError(f"{place}: pipeline stages are not modelled together with {key}")
