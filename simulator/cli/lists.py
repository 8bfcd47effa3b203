"""`servecast scenarios | policies | hardware | models | engines | schema`: what there is."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.cli.common import MARKS, JsonOption, command_of, find_scenario, print_json, show
from simulator.errors import UnknownNameError
from simulator.units import GIB

if TYPE_CHECKING:
    from simulator.profiles.engine import EngineProfile
    from simulator.profiles.model import ModelShape

Row = dict[str, Any]

COLUMNS: Final[dict[str, dict[str, str]]] = {
    "scenarios": {"name": "name", "run_with": "run with", "what": "what"},
    "policies": {"name": "name", "what": "what"},
    "hardware": {"name": "name", "full_name": "full name", "mark": "mark", "memory_gib": "memory\n[GiB]",
                 "bandwidth_gb_s": "bandwidth\n[GB/s]", "peak_16_bit_tflop_s": "16-bit\n[TFLOP/s]",
                 "tdp_w": "power\n[W]", "price_usd_h": "USD/h", "price_date": "price of"},
    "models": {"name": "name", "parameters": "parameters\n[1e9]", "weights_gib": "weights\n[GiB]", "format": "format",
               "experts": "experts", "window": "window", "max_positions": "positions",
               "kv_bytes_per_token": "KV [KiB\na token]", "kv_beyond_window": "beyond\nwindow"},
    "engines": {"name": "name", "policy": "policy", "max_num_seqs": "max_num_seqs",
                "max_num_batched_tokens": "max_num_batched_tokens", "block_size": "block",
                "schedule_ahead": "steps\nahead", "gpu_memory_utilization": "memory\nshare", "mark": "times"},
}
"""List -> its keys that a table shows, with their headings: what fits 100 columns. JSON has all."""
SCALED: Final = {"parameters": 1e9, "kv_bytes_per_token": 1024, "kv_beyond_window": 1024}
"""Keys that a table shows in a larger unit."""


def register(app: typer.Typer) -> None:
    """Add the commands that list things."""
    app.command("scenarios")(scenarios)
    app.command("models", help=(inspect.getdoc(model_rows) or "").splitlines()[0])(_lister("models", model_rows))
    app.command("policies")(policies)
    for name, rows, path_of in (("hardware", gpu_rows, _gpu_path), ("engines", engine_rows, _engine_path)):
        app.command(name, help=(inspect.getdoc(rows) or "").splitlines()[0] + f" With a name its profile, to start "
                    f"your own from: servecast {name} NAME > mine.yaml")(_lister_of_files(name, rows, path_of))
    app.command("schema")(schema)


def _lister(title: str, rows: Callable[[], list[Row]]) -> Callable[..., None]:
    def command(as_json: JsonOption = False) -> None:
        found = rows()
        if as_json:
            print_json(found)
        else:
            print_rows(title, found)

    return command


def _lister_of_files(title: str, rows: Callable[[], list[Row]], path_of: Callable[[str], Path]) -> Callable[..., None]:
    def command(name: Annotated[str, typer.Argument(help="Print this profile's YAML.")] = "",
                as_json: JsonOption = False) -> None:
        if name:
            typer.echo(path_of(name).read_text(encoding="utf-8"), nl=False)
        else:
            _lister(title, rows)(as_json)

    return command


def _gpu_path(name: str) -> Path:
    from simulator.profiles.gpu import load_gpu

    return load_gpu(name).path


def _engine_path(name: str) -> Path:
    from simulator.profiles.engine import load_engine

    return load_engine(name).path


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Rows as the table COLUMNS has for `title`; names and numbers are never folded or cut."""
    from rich.table import Table
    from rich.text import Text

    shown = COLUMNS[title]
    left = len(rows[0]) - len(shown)
    more = f" (--json has {left} keys more of each)" if left else ""
    table = Table(title=title + more, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for key, heading in shown.items():
        number = any(isinstance(row[key], int | float) for row in rows)
        table.add_column(heading, justify="right" if number else "left", no_wrap=key != "what")
    for row in rows:
        table.add_row(*(Text(_cell(key, row[key])) for key in shown))
    show(table)


def _cell(key: str, value: Any) -> str:
    if key in SCALED and value != "":
        return f"{value / SCALED[key]:,.4g}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def policies(name: Annotated[str, typer.Argument(help="Its knobs, and where its rule comes from.")] = "",
             as_json: JsonOption = False) -> None:
    """Scheduling policies; with a name its knobs and where its rule comes from."""
    rows = policy_rows()
    chosen = next((row for row in rows if row["name"] == name), None)
    if name and chosen is None:
        raise UnknownNameError("policy", name, [row["name"] for row in rows])
    if as_json:
        print_json(chosen or rows)
    elif chosen is None:
        print_rows("policies", rows)
    else:
        show(f"{name}: {chosen['what']}", f"knobs: {', '.join(chosen['knobs']) or 'none'}", chosen["reference"])


def scenarios(name: Annotated[str, typer.Argument(help="Print this scenario's YAML.")] = "",
              as_json: JsonOption = False) -> None:
    """Shipped scenarios; with a name its YAML, to start your own: servecast scenarios chat > mine.yaml"""
    if not name:
        rows = scenario_rows()
        print_json(rows) if as_json else print_rows("scenarios", rows)
        return
    path = find_scenario(name)
    if not path.is_file():
        raise UnknownNameError("scenario", name, [row["name"] for row in scenario_rows()])
    typer.echo(path.read_text(encoding="utf-8"), nl=False)


def scenario_rows() -> list[Row]:
    """Name, command and first comment line of every YAML file shipped in scenarios/."""
    from scenarios import ROOT

    order = ["run", *MARKS]
    found = [{"name": path.stem, "run_with": command_of(path),
              "what": path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")}
             for path in (*ROOT.glob("*.yaml"), *ROOT.glob("questions/*.yaml"))]
    return sorted(found, key=lambda row: (order.index(row["run_with"]), row["name"]))


def policy_rows() -> list[Row]:
    """Scheduling policies, the knobs each listens to, and where its rule comes from."""
    from policies.registry import POLICIES

    return [{"name": each.name, "what": each.summary, "knobs": list(each.knobs), "reference": each.reference}
            for each in POLICIES.values()]


def gpu_rows() -> list[Row]:
    """GPUs: memory, bandwidth, peak, and where the numbers come from."""
    from simulator.profiles.gpu import list_gpus

    return [{"name": gpu.path.stem, "full_name": gpu.name, "mark": gpu.mark,
             "memory_gib": round(gpu.memory_mib / 1024, 2),
             "bandwidth_gb_s": gpu.memory_gbps, "peak_16_bit_tflop_s": gpu.peak_tflops["bf16"], "tdp_w": gpu.tdp_w,
             "price_usd_h": gpu.price_usd_h, "price_date": gpu.price_date} for gpu in list_gpus()]


def model_rows() -> list[Row]:
    """Models: size, layers, 16-bit KV bytes per token; any other by its Hugging Face config.json."""
    from simulator.profiles.model import list_models, load_model

    return [_model_row(name, load_model(name)) for name in list_models()]


def _model_row(name: str, model: "ModelShape") -> Row:
    experts = model.experts
    return {"name": name, "parameters": model.parameters, "weights_gib": round(model.weight_bytes("auto") / GIB, 2),
            "format": model.weights.dtype, "layers": model.layers, "hidden": model.hidden, "heads": model.heads,
            "kv_heads": model.kv_heads, "experts": f"{experts.active} of {experts.routed}" if experts else "",
            "window": model.window or "", "vocab": model.vocab, "max_positions": model.max_positions,
            "kv_bytes_per_token": model.kv_bytes_per_token(),
            "kv_beyond_window": model.kv_bytes_per_token(context=model.window) if model.window else ""}


def engine_rows() -> list[Row]:
    """Serving engines: default policy and limits, and how the numbers were obtained."""
    from simulator.profiles.engine import list_engines

    return [{"name": each.path.stem, "version": each.version, "mark": each.mark, "policy": each.policy,
             "schedule_ahead": each.schedule_ahead, "max_num_seqs": _by_memory(each, "max_num_seqs"),
             "max_num_batched_tokens": _by_memory(each, "max_num_batched_tokens"), "block_size": each.block_size,
             "gpu_memory_utilization": each.gpu_memory_utilization,
             "documented": sum(mark != "assumed" for mark in each.marks.values()),
             "assumed": sum(mark == "assumed" for mark in each.marks.values())} for each in list_engines()]


def _by_memory(engine: "EngineProfile", key: str) -> str:
    """A default limit, with the one of large GPUs behind it where there are two."""
    small, large = vars(engine)[key], vars(engine)[f"{key}_large"]
    if not engine.large_memory_bytes or small == large:
        return f"{small:,}"
    return f"{small:,} (from {engine.large_memory_bytes / GIB:.0f} GiB {large:,})"


KindArgument = Annotated[str, typer.Argument(
    metavar="KIND", help="scenario, or a kind of JSON that is written: summary, plan, budget, deployments, capacity, "
    "load, whatif.")]


def schema(kind: KindArgument = "scenario") -> None:
    """JSON schema of a scenario file, or of the JSON that a command writes, for editors and checks."""
    from simulator.cli.schema import scenario_schema
    from simulator.report.schemas import KINDS, schema_for

    if kind not in ("scenario", *KINDS):
        raise UnknownNameError("schema", kind, ("scenario", *KINDS), "KIND")
    print_json(scenario_schema() if kind == "scenario" else schema_for(kind))
