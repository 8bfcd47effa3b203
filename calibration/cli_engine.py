"""`servecast calibrate engine`: host and GPU scale of a user's own server, from what a client wrote or by a probe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.common import JsonOption, OutOption, note, print_json, show
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from calibration.observed import Observation
    from calibration.probe import Bounds
    from calibration.scales import Scales
    from calibration.server import Server
    from simulator.profiles.gpu import Gpu

ModelOption = Annotated[str, typer.Option("--model", metavar="M", help="The model served: a name or a config.json.")]
HardwareOption = Annotated[str, typer.Option("--hardware", metavar="G", help="Its GPU: a name or a profile file.")]
TpOption = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel size.")]
EngineOption = Annotated[str, typer.Option("--engine", metavar="E", help="A name of servecast engines.")]
SeqsOption = Annotated[int | None, typer.Option("--max-num-seqs", min=1, max=65536, help="Default: the engine's.")]
BudgetOption = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", min=1, max=2**22, help="Default: the engine's.")]
LengthOption = Annotated[int | None, typer.Option("--max-model-len", min=2, help="Default: the model's.")]
ShareOption = Annotated[float | None, typer.Option("--gpu-memory-utilization", help="Default: the engine's.")]
BlocksOption = Annotated[
    int | None, typer.Option("--num-gpu-blocks", min=2, max=2**30, help="KV blocks as the engine printed them.")]
WeightOption = Annotated[str, typer.Option("--weight-dtype", help="Format the weights are loaded in.")]
KvOption = Annotated[str, typer.Option("--kv-dtype", help="Format of the KV cache.")]


def engine(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULT]...", help="A benchmark client's result file, a scrape of vLLM's /metrics, "
                       "a step log (steps.csv), or a folder with run.yaml."),
    ] = None,
    model: ModelOption = "",
    hardware: HardwareOption = "",
    tp: TpOption = 1,
    engine_name: EngineOption = "vllm-0.24",
    max_num_seqs: SeqsOption = None,
    max_num_batched_tokens: BudgetOption = None,
    max_model_len: LengthOption = None,
    gpu_memory_utilization: ShareOption = None,
    num_gpu_blocks: BlocksOption = None,
    weight_dtype: WeightOption = "auto",
    kv_dtype: KvOption = "bf16",
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="Probe the OpenAI-compatible server at this address.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Send the probe; without it, it is only shown.")] = False,
    served_model: Annotated[
        str, typer.Option("--served-model", metavar="NAME", help="Its name there. Default: the first.")] = "",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=10**7, help="Most tokens a probe sends and asks for.")] = 100_000,
    max_seconds: Annotated[float, typer.Option("--max-seconds", min=0.1, max=3600, help="Its longest time.")] = 120.0,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit how much slower than the profiles a server's host and GPU are, with error bars.

    Writes host.yaml and gpu.yaml for scenarios to name, and calibration.json with what stands behind them.
    """
    from calibration.server import Server

    given = Server(model, hardware, tp, engine_name, max_num_seqs, max_num_batched_tokens, max_model_len,
                   gpu_memory_utilization, num_gpu_blocks, weight_dtype, kv_dtype)
    if bool(results) == bool(url):
        raise ConfigError("calibrate engine needs a RESULT or --url; accepted: result files of a benchmark client, "
                          "scrapes of /metrics, folders with run.yaml, or the address of a server to probe")
    if out is not None:
        from simulator.report.folder import check_target

        check_target(out)
    if url:
        from calibration.probe import Bounds

        observed, gpu = probe(url, given, Bounds(max_tokens, max_seconds), served_model, yes)
    else:
        observed, gpu = observations(results or [], given)
    tell(observed, gpu, results or [], given if url or any(path.is_file() for path in results or []) else None, out,
         as_json)


def tell(observed: list["Observation"], gpu: "Gpu", results: list[Path], given: "Server | None", out: Path | None,
         as_json: bool) -> None:
    """Fit the runs, print and write what they tell."""
    from dataclasses import asdict

    from calibration.overlay import check_base, fit_data, write_overlay
    from calibration.scales import fit_scales

    check_base(gpu)
    found = fit_scales(observed)
    if out is not None:
        described = asdict(given) if given else {}
        write_overlay(out, found, gpu, results, {k: v for k, v in described.items() if v not in ("", None)})
    if as_json:
        print_json(fit_data(found))
        return
    show(table(found), *found.sentences)
    if out is not None:
        note(f"{out}/host.yaml and {out}/gpu.yaml written; use them with --set host.name={out}/host.yaml "
             f"--set hardware.gpu={out}/gpu.yaml, or in a scenario's host: {{name: ...}} and hardware: {{gpu: ...}}")


def observations(results: list[Path], given: "Server") -> tuple[list["Observation"], "Gpu"]:
    """What the inputs tell, and the GPU they are of. Raises ConfigError where they are of several."""
    from calibration.inputs import needed_flags, places_of, runs_of
    from calibration.observed import RequestMeans
    from calibration.scrape import ScrapeMeans, is_scrape
    from calibration.steplog import StepMeans, is_step_log
    from simulator.profiles.gpu import load_gpu

    scrapes = [path for path in results if path.is_file() and is_scrape(path)]
    places = places_of(path for path in results if path not in scrapes)
    logs = [path for path in places if path.is_file() and is_step_log(path)]
    runs = [run for path in places if path not in logs for run in runs_of(path, given, note)]
    observed: list[Observation] = [RequestMeans(run) for run in runs]
    names = [run.gpu for run in runs]
    for path in (*scrapes, *logs):
        needed_flags(given, path)
        names.append(given.hardware)
    observed += [ScrapeMeans(scrapes, given)] if scrapes else []
    observed += [StepMeans(path, given) for path in logs]
    gpus = {load_gpu(name).path: load_gpu(name) for name in names}
    if len(gpus) > 1:
        raise ConfigError(f"runs of several GPUs ({', '.join(gpu.name for gpu in gpus.values())}) share no factor; "
                          "accepted: runs of one")
    return observed, next(iter(gpus.values()))


def probe(url: str, given: "Server", bounds: "Bounds", served_model: str, yes: bool
          ) -> tuple[list["Observation"], "Gpu"]:
    """Show what would be sent, and with `yes` send it."""
    import asyncio

    from calibration.observed import RequestMeans
    from calibration.probe import Probe, checked_address, plan
    from simulator.profiles.gpu import load_gpu
    from simulator.profiles.model import load_model

    if not (given.model and given.hardware):
        raise ConfigError("--url needs --model and --hardware: what the server runs, e.g. llama-3.1-8b and h100")
    address, model, gpu = checked_address(url), load_model(given.model), load_gpu(given.hardware)
    longest = min(given.max_model_len or model.max_positions, model.max_positions)
    parts = plan(given.settings(2).max_num_seqs, longest, bounds.tokens)
    show(f"To {address} go up to {sum(part.tokens for part in parts):,} tokens, at most {bounds.seconds:g} s:",
         *[f"  {part}: {part.groups} times and once to warm up" for part in parts])
    if not yes:
        note("nothing was sent; add --yes to send this")
        raise typer.Exit()
    done = asyncio.run(Probe(address, bounds.seconds, model.vocab, served_model).run(parts, longest))
    return [RequestMeans(given.run(done.served), done.parts)], gpu


def table(found: "Scales") -> "Table":
    """Means as measured, by the profiles as they are, and with the factors."""
    from rich.table import Table

    from simulator.text import seconds

    grid = Table(title="what the runs tell, as geometric means: measured, predicted before and after the fit")
    for name in ("run", "metric", "of"):
        grid.add_column(name)
    for name in ("requests", "measured", "before", "after"):
        grid.add_column(name, justify="right")
    for row in found.rows:
        grid.add_row(row["run"], row["metric"].upper(), row["of"], str(row["requests"]), seconds(row["measured_s"]),
                     _with_error(row, "before_s"), _with_error(row, "after_s"))
    return grid


def _with_error(row: dict[str, Any], key: str) -> str:
    from simulator.text import seconds

    return f"{seconds(row[key])} ({100 * (row[key] / row['measured_s'] - 1):+.1f} %)"
