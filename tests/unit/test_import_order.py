"""Imports point one way, those inside functions and for type checking too; no module and no folder is in a circle.

A row a folder (or module of simulator/): it may import its own row and those above it. The last row
holds the command line and `calibration`, which has commands of its own and may import everything.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    ("errors", "units", "jit", "code_cache", "uncollected", "atomic", "text", "version", "reading", "memory",
     "yaml_text", "hwprofiles", "scenarios"),
    ("config", "records"),
    ("state",),
    ("profiles", "workload", "windows", "kv", "free_queue", "offload", "prefix"),
    ("cost", "policies"),
    ("engines",),
    ("selftest",),
    ("scenario",),
    ("result",),
    ("metrics",),
    ("engine_choice", "run"),
    ("replicate", "planning"),
    ("report",),
    ("sweep", "ui"),
    ("bench",),
    ("cli", "calibration"),
)
OURS = ("simulator", "policies", "calibration", "hwprofiles", "scenarios")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def sources() -> dict[str, Path]:
    found = [path for folder in OURS for path in ROOT.glob(f"{folder}/**/*.py")]
    return {name_of(path): path for path in sorted(found)}


def room(module: str) -> str:
    """The row's name of a dotted module: the part below `simulator`, else the top-level folder."""
    parts = module.split(".")
    return parts[1] if parts[0] == "simulator" and len(parts) > 1 else parts[0]


def layer(module: str) -> int:
    for place, names in enumerate(LAYERS):
        if room(module) in names:
            return place
    raise AssertionError(f"{module} has no layer: add it to LAYERS in {__file__}")


def imported(own: str) -> Iterator[str]:
    """Modules of ours that `own` imports anywhere in its text: `from a import b` is a.b where that is a module."""
    path = sources()[own]
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{a.name}" if f"{base}.{a.name}" in sources() else base for a in node.names]
        yield from (name for name in names if name.split(".")[0] in OURS)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of a graph as a list of names, empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def modules() -> list[str]:
    return [name for name in sources() if name != "simulator"]


def test_the_sources_are_read_and_a_circle_is_found() -> None:
    assert {"simulator.state", "policies.chunked", "simulator.engines.fast", "calibration.fit"} <= set(sources())
    assert "simulator.metrics.summary" in set(imported("simulator.run"))  # inside a method
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circle({"a": {"b", "c"}, "b": {"c"}})


@pytest.mark.parametrize("own", modules())
def test_imports_point_down(own: str) -> None:
    assert [name for name in imported(own) if layer(name) > layer(own)] == []


def test_no_module_is_in_a_circle() -> None:
    assert circle({own: set(imported(own)) - {own, "simulator"} for own in modules()}) == []


def test_no_room_is_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for own in modules():
        if room(own) not in LAYERS[-1]:  # `servecast calibrate` is a command that calibration has
            graph.setdefault(room(own), set()).update({room(name) for name in imported(own)} - {room(own), "simulator"})
    assert circle(graph) == []


def test_the_package_itself_is_imported_for_names_only_by_users() -> None:
    """`simulator/__init__` resolves its names on first use; inside, names come from the module that has them."""
    assert [own for own in modules() if "simulator" in set(imported(own)) and room(own) != "calibration"] == []


def test_engines_and_policies_read_no_files_and_no_clock() -> None:
    """Step functions are pure: no random numbers, no time, no files."""
    for path in [*ROOT.glob("policies/*.py"), *ROOT.glob("simulator/engines/*.py"), ROOT / "simulator" / "kv.py"]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        roots = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import)
                 for alias in node.names}  # fmt: skip
        roots |= {
            node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
        }
        assert not roots & {"random", "time", "datetime", "os", "pathlib", "io"}, path
