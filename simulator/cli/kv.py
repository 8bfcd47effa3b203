"""`servecast kv`: how many KV blocks a model leaves on a GPU, part by part."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.cli.common import JsonOption, note, print_json, show
from simulator.errors import CapacityError, ConfigError
from simulator.version import schema_of

if TYPE_CHECKING:
    from rich.table import Table

    from simulator.profiles.capacity import KvCapacity
    from simulator.profiles.shape import ModelShape

FORMULA: Final = """\
blocks per GPU = floor(left for KV / block bytes)
left for KV    = CUDA's memory x utilisation - weights - peak of profiling - CUDA graphs - workspace
block bytes    = block size x KV bytes per token (of one group of layers where there are several)
KV bytes/token = 2 x layers x KV heads per GPU x head size x bytes of the KV format
                 (latent attention: one row a layer)
tokens         = (blocks - 1) x block size: one block is the engine's null block"""
WINDOWED: Final = """\
tokens         = requests of the longest length that fit at once x that length
                 (windowed layers keep the window only)"""


def register(app: typer.Typer) -> None:
    """Add `kv`."""
    app.command("kv")(kv)


def kv(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model, or a config.json.")],
    gpus: Annotated[list[str], typer.Argument(metavar="GPU...", help="Shipped GPUs or profile files.")],
    tensor_parallel: Annotated[int, typer.Option(
        "--tp", "--tensor-parallel", min=1, help="GPUs a replica is spread over.")] = 1,
    stages: Annotated[int, typer.Option(
        "--pp", "--pipeline-parallel", min=1, max=256, help="Pipeline stages; the fullest is shown.")] = 1,
    weight_dtype: Annotated[str, typer.Option(
        "--weight-dtype", help="auto (the checkpoint's own), bf16, fp8, int8, int4, fp4.")] = "auto",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="bf16 or fp8.")] = "bf16",
    engine: Annotated[str, typer.Option("--engine", help="An engine profile.")] = "vllm-0.24",
    max_num_seqs: Annotated[int | None, typer.Option("--max-num-seqs", min=1, max=65_536)] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(
        "--max-num-batched-tokens", min=1, max=2**22)] = None,
    utilization: Annotated[float | None, typer.Option("--gpu-memory-utilization", min=0.0, max=1.0)] = None,
    block_size: Annotated[int | None, typer.Option("--block-size", min=1, max=4096)] = None,
    max_model_len: Annotated[int | None, typer.Option(
        "--max-model-len", min=2, max=2**40,
        help="Longest sequence in tokens, default the model's; GPUs that cannot hold one are refused.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="A draft model's config.json, for speculation.")] = None,
    draft_tokens: Annotated[int, typer.Option("--draft-tokens", min=0, max=64, help="Tokens drafted a step.")] = 0,
    request_tokens: Annotated[int, typer.Option(
        "--request-tokens", min=1, max=2**40, help="Prompt + output of one request, for how many fit at once.")] = 2048,
    compile_cache: Annotated[bool, typer.Option(
        "--compile-cache", help="A later start: torch.compile's cache is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """KV calculator: memory by part, the formula, blocks, tokens, and how many requests fit at once."""
    from simulator.profiles.capacity import kv_capacity
    from simulator.profiles.engine import load_engine
    from simulator.profiles.gpu import load_gpu
    from simulator.profiles.model import load_model
    from simulator.profiles.reserve import check_compile_cache
    from simulator.scenario.length import check_fits, check_positions

    shape, profile = load_model(model), load_engine(engine)
    if compile_cache:
        check_compile_cache(profile, "--compile-cache")
    if max_model_len is not None:
        try:
            check_positions(shape, max_model_len)
        except ConfigError as error:
            raise ConfigError(f"--max-model-len: {error}") from None
    options = (tensor_parallel, weight_dtype, kv_dtype, max_num_seqs, max_num_batched_tokens, utilization,
               block_size, max_model_len, load_model(draft) if draft else None, draft_tokens, None, stages)
    found, refused, later = [], [], []
    for gpu in [load_gpu(name) for name in gpus]:
        try:
            each = kv_capacity(gpu, profile, shape, *options, compile_cache)
            if max_model_len is not None:
                check_fits(max_model_len, each.tokens, each, given=True)
            found.append(each)
            later.append(kv_capacity(gpu, profile, shape, *options, True) if profile.compile_copies_table else None)
        except CapacityError as error:
            refused.append(CapacityError(f"--max-model-len: {error}" if str(error).startswith("must") else str(error)))
    if not found:
        raise refused[0]
    for reason in refused:
        note(str(reason))
    if max_model_len is None:
        for each in found:
            if each.tokens < shape.max_positions and not shape.windows:
                note(f"{each.gpu}: an engine would not start with {shape.name}'s {shape.max_positions:,} positions "
                     f"(the default); max_model_len must be <= {each.tokens:,}")
    if as_json:
        print_json({"schema": schema_of("kv"), "gpus": [
            _facts(each, request_tokens, second) for each, second in zip(found, later, strict=True)]})
    else:
        formula = f"{FORMULA.rpartition(chr(10))[0]}\n{WINDOWED}" if any(found[0].groups.windows) else FORMULA
        show(_table(found, shape, request_tokens, stages), "", formula, *_later_starts(found, later))
    if shape.not_counted:
        note(f"{shape.name}: {shape.not_counted} is not counted: its size does not follow from the config")


def _later_starts(found: list["KvCapacity"], later: list["KvCapacity | None"]) -> list[str]:
    """A line for each GPU that shows a first start: what a later one has."""
    pairs = [(first, second) for first, second in zip(found, later, strict=True)
             if second and not first.compile_cache]
    return ["", *(
        f"{f'{first.gpu}: a' if len(found) > 1 else 'A'} later start, with torch.compile's cache, has "
        f"{second.num_gpu_blocks:,} blocks (+{100 * (second.num_gpu_blocks / first.num_gpu_blocks - 1):.1f} %)."
        for first, second in pairs)] if pairs else []


def _facts(capacity: "KvCapacity", tokens: int, later: "KvCapacity | None") -> dict[str, Any]:
    groups = [{"layers": capacity.groups.size, "window": window} for window in capacity.groups.windows]
    return {**vars(capacity), "groups": groups, "request_tokens": tokens,
            "requests_at_once": capacity.requests_at_once(tokens),
            "later_start_blocks": later.num_gpu_blocks if later else None}


def _table(found: list["KvCapacity"], model: "ModelShape", tokens: int, stages: int) -> "Table":
    from rich.table import Table

    from simulator.units import GIB

    first = found[0]
    table = Table(title=f"{first.model}, weights {first.weight_format}, tensor parallel {first.tensor_parallel}, "
                  f"{f'the fullest of {stages} pipeline stages, ' if stages > 1 else ''}per GPU")
    table.add_column("part")
    for each in found:
        table.add_column(each.gpu, justify="right")
    table.add_row("memory", *(f"{each.total_bytes / GIB:.2f} GiB" for each in found))
    for row in range(len(first.rows())):
        table.add_row(first.rows()[row][0], *(f"{each.rows()[row][1] / GIB:.2f} GiB" for each in found))
    rows = [("max_num_seqs", [each.max_num_seqs for each in found]),
            ("max_num_batched_tokens", [each.max_num_batched_tokens for each in found]),
            ("KV bytes per token", [each.kv_bytes_per_token for each in found])]
    if model.window:
        beyond = model.kv_bytes_per_token(context=model.window) * first.kv_bytes_per_token // model.kv_bytes_per_token()
        rows.append((f"  beyond {model.window:,} tokens", [beyond] * len(found)))
    if first.layer_groups > 1:
        rows.append(("groups of layers", [first.layer_groups] * len(found)))
    rows += [(f"block bytes ({first.block_size} tokens)", [each.block_bytes for each in found]),
             ("blocks", [each.num_gpu_blocks for each in found]),
             ("tokens, the most for max_model_len", [each.tokens for each in found]),
             (f"requests of {tokens:,} tokens at once", [each.requests_at_once(tokens) for each in found])]
    for name, values in rows:
        table.add_row(name, *(f"{value:,}" for value in values))
    return table
