"""Imports point one way: each module may import, when it is loaded, only its own layer and those below it.

Imports inside functions are left out: they are how `Result.summary` reaches the metrics, and how the command line
loads quickly. Only `calibration` must not be imported even so: it stands outside and may import everything.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    ("errors", "units", "jit", "atomic", "hwprofiles", "scenarios"),
    ("config", "state"),
    ("profiles", "workload", "kv", "prefix", "cost"),
    ("policies",),
    ("engines",),
    ("scenario",),
    ("run",),
    ("metrics",),
    ("planning",),
    ("sweep", "bench"),
    ("report",),
    ("ui",),
    ("cli",),
)
OURS = ("simulator", "policies", "calibration", "hwprofiles", "scenarios")


def sources() -> list[Path]:
    found = [*ROOT.glob("simulator/**/*.py"), *ROOT.glob("policies/**/*.py")]
    return sorted(path for path in found if path != ROOT / "simulator" / "__init__.py")


def layer(module: str) -> int:
    """Place of a dotted module name in LAYERS: by its first part below `simulator`."""
    parts = module.split(".")
    name = parts[1] if parts[0] == "simulator" and len(parts) > 1 else parts[0]
    for place, names in enumerate(LAYERS):
        if name in names:
            return place
    raise AssertionError(f"{module} has no layer: add it to LAYERS in {__file__}")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(node: ast.AST, package: str, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """(module, whether inside a function or for type checking only) of every import of ours below `node`."""
    for child in ast.iter_child_nodes(node):
        later = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        later = later or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - child.level + 1] if child.level else []
            base = ".".join([*above, *([child.module] if child.module else [])])
            names = [f"{base}.{alias.name}" for alias in child.names] if base == "simulator" else [base]
        yield from ((name, later) for name in names if name.split(".")[0] in OURS)
        yield from imported(child, package, later)


def test_some_sources_are_read() -> None:
    names = {name_of(path) for path in sources()}
    assert {"simulator.state", "policies.chunked", "simulator.engines.fast", "simulator.workload.trace"} <= names


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = name_of(path)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    found = list(imported(ast.parse(path.read_text(encoding="utf-8")), package))
    assert [
        name for name, _ in found if name.split(".")[0] == "calibration" and not own.startswith("simulator.cli")
    ] == []
    now = [name for name, later in found if not later and name not in ("simulator.__version__",)]
    assert [name for name in now if layer(name) > layer(own)] == []


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
