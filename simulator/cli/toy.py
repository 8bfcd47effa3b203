"""`servecast toy`: a handful of output lengths, static and continuous batching drawn side by side."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `toy`."""
    app.command("toy")(toy)


LengthsArgument = Annotated[list[int], typer.Argument(
    min=1, max=100_000, metavar="LENGTHS...", help="Output tokens of each request, all waiting at 0.")]
SlotsOption = Annotated[int, typer.Option("--slots", min=1, max=1024, help="Slots of a batch.")]


def toy(lengths: LengthsArgument, slots: SlotsOption = 4) -> None:
    """Draw who holds which slot when, under static and under continuous batching (1 step = 1 token)."""
    from simulator.cli.common import show
    from simulator.report.toy import toy as draw

    show(draw(lengths, slots))
