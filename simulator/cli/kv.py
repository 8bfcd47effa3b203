"""`servecast kv`: how many KV blocks a model leaves on a GPU, part by part."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.cli.common import JsonOption, note, print_json, show
from simulator.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from simulator.profiles.capacity import KvCapacity

FORMULA: Final = """\
blocks per GPU = floor(left for KV / block bytes)
left for KV    = memory x utilisation - weights - activations - logits - CUDA graphs - workspace
block bytes    = block size x KV bytes per token
KV bytes/token = 2 x layers x KV heads per GPU x head size x bytes of the KV format
tokens         = (blocks - 1) x block size: one block is the engine's null block"""


def register(app: typer.Typer) -> None:
    """Add `kv`."""
    app.command("kv")(kv)


def kv(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model, or a config.json.")],
    gpus: Annotated[list[str], typer.Argument(metavar="GPU...", help="Shipped GPUs or profile files.")],
    tensor_parallel: Annotated[int, typer.Option("--tp", min=1, help="GPUs a replica is spread over.")] = 1,
    weight_dtype: Annotated[str, typer.Option("--weight-dtype", help="bf16, fp8, int8, int4, fp4.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="bf16 or fp8.")] = "bf16",
    engine: Annotated[str, typer.Option("--engine", help="An engine profile.")] = "vllm-0.24",
    max_num_seqs: Annotated[int | None, typer.Option("--max-num-seqs", min=1, max=65_536)] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(
        "--max-num-batched-tokens", min=1, max=2**22)] = None,
    utilization: Annotated[float | None, typer.Option("--gpu-memory-utilization", min=0.0, max=1.0)] = None,
    block_size: Annotated[int | None, typer.Option("--block-size", min=1, max=4096)] = None,
    max_model_len: Annotated[int | None, typer.Option(
        "--max-model-len", min=2, max=2**40, help="Refuse GPUs that cannot hold one sequence of this length.")] = None,
    request_tokens: Annotated[int, typer.Option(
        "--request-tokens", min=1, max=2**40, help="Prompt + output of one request, for how many fit at once.")] = 2048,
    as_json: JsonOption = False,
) -> None:
    """KV calculator: memory by part, the formula, blocks, tokens, and how many requests fit at once."""
    from simulator.profiles.capacity import kv_capacity
    from simulator.profiles.engine import load_engine
    from simulator.profiles.gpu import load_gpu
    from simulator.profiles.model import load_model
    from simulator.scenario.length import check_fits, check_positions

    shape, profile = load_model(model), load_engine(engine)
    if max_model_len is not None:
        try:
            check_positions(shape, max_model_len)
        except ConfigError as error:
            raise ConfigError(f"--max-model-len: {error}") from None
    options = (tensor_parallel, weight_dtype, kv_dtype, max_num_seqs, max_num_batched_tokens, utilization,
               block_size)
    found, refused = [], []
    for gpu in [load_gpu(name) for name in gpus]:
        try:
            each = kv_capacity(gpu, profile, shape, *options)
            if max_model_len is not None:
                check_fits(max_model_len, each.tokens, each, given=True)
            found.append(each)
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
        print_json([_facts(each, request_tokens) for each in found])
    else:
        show(_table(found, request_tokens), "", FORMULA)


def requests_at_once(capacity: "KvCapacity", tokens: int) -> int:
    """How many requests of `tokens` tokens hold their whole KV at the same time."""
    return max(0, capacity.num_gpu_blocks - 1) // -(-tokens // capacity.block_size)


def _facts(capacity: "KvCapacity", tokens: int) -> dict[str, Any]:
    return {**vars(capacity), "tokens": capacity.tokens, "request_tokens": tokens,
            "requests_at_once": requests_at_once(capacity, tokens)}


def _table(found: list["KvCapacity"], tokens: int) -> "Table":
    from rich.table import Table

    from simulator.units import GIB

    first = found[0]
    table = Table(title=f"{first.model}, tensor parallel {first.tensor_parallel}, per GPU")
    table.add_column("part")
    for each in found:
        table.add_column(each.gpu, justify="right")
    table.add_row("memory", *(f"{each.total_bytes / GIB:.2f} GiB" for each in found))
    for row in range(len(first.rows())):
        table.add_row(first.rows()[row][0], *(f"{each.rows()[row][1] / GIB:.2f} GiB" for each in found))
    for name, values in (
        ("KV bytes per token", [each.kv_bytes_per_token for each in found]),
        (f"block bytes ({first.block_size} tokens)", [each.block_bytes for each in found]),
        ("blocks", [each.num_gpu_blocks for each in found]),
        ("tokens, the most for max_model_len", [each.tokens for each in found]),
        (f"requests of {tokens:,} tokens at once", [requests_at_once(each, tokens) for each in found]),
    ):
        table.add_row(name, *(f"{value:,}" for value in values))
    return table
