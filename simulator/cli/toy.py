"""`servecast toy`: a handful of output lengths in pictures: static and continuous batching, memory, two tenants."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `toy`."""
    app.command("toy")(toy)


LengthsArgument = Annotated[list[int], typer.Argument(
    min=1, max=100_000, metavar="LENGTHS...", help="Output tokens of each request, all waiting at 0.")]
SlotsOption = Annotated[int, typer.Option("--slots", min=1, max=1024, help="Slots of a batch.")]
MemoryOption = Annotated[int | None, typer.Option(
    "--memory", metavar="TOKENS", help="Draw KV memory of so many tokens instead: reserved, paged, running out.")]
FairOption = Annotated[bool, typer.Option(
    "--fair", help="Draw two tenants instead, one with the long answers: in order of arrival and by fair shares.")]


def toy(lengths: LengthsArgument, slots: SlotsOption = 4, memory: MemoryOption = None,
        fair: FairOption = False) -> None:
    """Draw who holds which slot when, under static and under continuous batching (1 step = 1 token)."""
    from simulator.cli.common import show

    if memory is not None and fair:
        raise typer.BadParameter("--memory and --fair are two pictures; give one of them")
    if memory is not None:
        from simulator.report.toy_memory import toy_memory

        show(toy_memory(lengths, memory, slots))
    elif fair:
        from simulator.report.toy_fair import toy_fair

        show(toy_fair(lengths, slots))
    else:
        from simulator.report.toy import toy as draw

        show(draw(lengths, slots))
