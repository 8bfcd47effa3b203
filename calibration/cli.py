"""`servecast calibrate run|fit|engine` and `servecast validate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibration.cli_engine import (
    BlocksOption,
    BudgetOption,
    EngineOption,
    HardwareOption,
    KvOption,
    LengthOption,
    ModelOption,
    SeqsOption,
    ShareOption,
    TpOption,
    WeightOption,
)
from calibration.cli_engine import engine as calibrate_engine
from simulator.cli.common import JsonOption, note, print_json, show
from simulator.cli.progress import progress_bar

if TYPE_CHECKING:
    from calibration.fit import Calibration

_PARTS = typer.Typer(help="Measure this machine's GPU, fit profiles to measurements and to servers.")


def register(app: typer.Typer) -> None:
    """Add `calibrate` and `validate`."""
    _PARTS.command("engine")(calibrate_engine)
    app.add_typer(_PARTS, name="calibrate")
    app.command("validate")(validate)


@_PARTS.command("run")
def run(
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="Where the measurements go.")],
    quick: Annotated[bool, typer.Option("--quick", help="A few points of each table.")] = False,
    sanitize: Annotated[bool, typer.Option("--sanitize", help="Also check under compute-sanitizer.")] = False,
) -> None:
    """Build and run the CUDA microbenchmarks on this machine; needs nvcc and an NVIDIA GPU."""
    from calibration.harness import run_harness

    note(f"measurements in {run_harness(out, quick, sanitize)}")


@_PARTS.command("fit")
def fit(
    measurements: Annotated[
        Path | None,
        typer.Argument(help="Folder as calibration/measurements, or one operator JSON (default: shipped)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="GPU.yaml", help="Profile whose measured: is replaced."),
    ] = None,
    engine: Annotated[
        Path | None, typer.Option("--engine", metavar="ENGINE.yaml", help="Engine profile to update.")
    ] = None,
    host: Annotated[
        Path | None, typer.Option("--host", metavar="HOST.yaml", help="Host profile to update.")
    ] = None,
    h200: Annotated[
        Path | None, typer.Option("--h200", metavar="GPU.yaml", help="H200 profile whose measured: is replaced.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="F.svg", help="Fit against points.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a GPU profile, and from step logs those of engine and host, to measurements."""
    from calibration.fit import MEASUREMENTS, operator_block, write_measured

    source = MEASUREMENTS if measurements is None else measurements
    if source.is_file():
        block = operator_block(source)
        if out is not None:
            write_measured(out, block)
            note(f"written: {out}")
        print_json(block)
        return
    _fit_folder(source, out, engine, host, h200, plot, as_json)


def _fit_folder(
    source: Path, out: Path | None, engine: Path | None, host: Path | None, h200: Path | None,
    plot: Path | None, as_json: bool
) -> None:
    from calibration.fit import (
        calibrate,
        engine_values,
        host_values,
        measured_block,
        write_measured,
        write_numbers,
    )
    from calibration.fit_h200 import calibrate_h200, h200_block
    from calibration.validate import fit_figure

    found = calibrate(source)
    second = calibrate_h200(found, source)
    block, numbers, times = measured_block(found), engine_values(found), host_values(
        found, second.workers, second.stages)
    if out is not None:
        write_measured(out, block)
    if h200 is not None:
        write_measured(h200, h200_block(second))
    if engine is not None:
        write_numbers(engine, numbers)
    if host is not None:
        write_numbers(host, times)
    if plot is not None:
        fit_figure(found.steps.gaps).savefig(plot)
    for path in (out, h200, engine, host, plot):
        if path is not None:
            note(f"written: {path}")
    _print_fit(found, {"gpu": block, "h200": h200_block(second), "engine": numbers, "host": times}, as_json)


def _print_fit(found: "Calibration", numbers: dict[str, dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(numbers)
    else:
        show(found.summary())


def validate(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders with run.yaml in or below them, or clients' result files."),
    ],
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
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="F", help="Write the result as JSON.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="F.html", help="Write one HTML page.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="fast, measured, slow, or a host profile.")
    ] = "measured",
    cpu_scale: Annotated[
        float, typer.Option("--cpu-scale", min=0.01, max=100, help="Multiplies the host's CPU times.")
    ] = 1.0,
    own_launches: Annotated[
        bool, typer.Option("--own-launches", help="Scale the host to the launches in each run's step log: what is left "
                                                  "is not the host's state.")
    ] = False,
) -> None:
    """Predict measured runs from their settings alone and show predicted against measured."""
    from calibration import validate as validation
    from calibration.harness import write_atomically
    from calibration.inputs import places_of
    from calibration.overlay import fit_sentence
    from calibration.server import Server
    from simulator.profiles.host import load_host

    server = Server(model, hardware, tp, engine_name, max_num_seqs, max_num_batched_tokens, max_model_len,
                    gpu_memory_utilization, num_gpu_blocks, weight_dtype, kv_dtype)
    served_on = load_host(host).scaled(cpu_scale)
    with progress_bar("predicting", len(places_of(inputs)), quiet=False) as advance:
        pairs, refused = validation.predicted(inputs, served_on, server, note, own_launches, advance)
    fit = fit_sentence((host, hardware), inputs)
    result = validation.report(pairs, served_on, own_launches) | {"refused": refused}
    if json_file is not None:
        write_atomically(json_file, json.dumps(result, indent=1, allow_nan=False) + "\n")
    if report is not None:
        from calibration.report import validation_page

        write_atomically(report, validation_page(result, [run for run, _ in pairs], served_on, fit=fit))
    inside, width = result["inside_interval_pct"], result["median_width_pct"]
    for entry in refused:
        note(f"{entry['run']} left out: {entry['reason']}")
    held = "every run was used for the fit" if inside is None else (
        f"inside the 90 % interval: {inside} %; median half-width {width} %")
    show(validation.table(result), held, *([fit] if fit else []))
    for path in (json_file, report):
        if path is not None:
            note(f"written: {path}")
