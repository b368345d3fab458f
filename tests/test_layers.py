"""Imports point down only. The package's layers, and what each of them may know of the world outside."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import elastic_dgc

PACKAGE = Path(elastic_dgc.__file__).parent
JOBS = PACKAGE.parent / "jobs"

FOUNDATION = {"", "errors", "config", "seeds", "faults", "log"}  # "" is the package itself, which loads lazily
ORDER: list[set[str]] = [  # from the bottom up; layers of one set do not import each other
    {"compression", "precision", "exchange"},
    {"step"},
    {"data", "keeping", "membership"},
    {"protocol"},
    {"simulation"},
    {"models"},
    {"tasks"},
    {"trainer"},
    {"recipes", "bench"},
    {"cli"},
]
BELOW: dict[str, set[str]] = {
    layer: {name for lower in ORDER[:height] for name in lower} for height, tier in enumerate(ORDER) for layer in tier
}
BELOW["ddp"] = {
    "compression",
    "precision",
}  # beside the trainer's layers: no import in either direction
BELOW["bench"].add("ddp")
PURE = {"torch", "numpy", "pydantic"}  # all that compression and precision may know of the world


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, inside functions and under TYPE_CHECKING too; 'from a import b' is a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def violations(layer: str, source: str) -> list[str]:
    """What a file of a layer imports and may not. `layer` is '' for the modules of the foundation."""
    found = []
    for line, name in imports(source):
        top, *rest = name.split(".")
        if top == "elastic_dgc":
            target = rest[0] if rest else ""
            # 'from elastic_dgc import X': X is a module, or a name of the package, which stands for all layers
            allowed = FOUNDATION | BELOW.get(layer, set()) | ({layer} if layer else set())
            if target not in allowed:
                found.append(f"line {line}: {layer or 'the foundation'} imports {name}")
        elif top == "ray" and layer not in ("trainer", "bench"):
            found.append(f"line {line}: {layer or 'the foundation'} imports ray")
        elif layer in ("compression", "precision") and top not in PURE | sys.stdlib_module_names:
            found.append(f"line {line}: {layer} imports {name}")
    return found


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    parts = path.relative_to(PACKAGE).parts
    layer = parts[0] if len(parts) > 1 else ""
    assert layer in BELOW or path.stem in FOUNDATION, f"{path} is in no known layer"
    assert not violations(layer, path.read_text())


def test_the_package_itself_loads_nothing_but_lazily() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    now = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in now}
    assert names <= {"__future__", "importlib", "typing"}


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.py")), ids=lambda path: path.name)
def test_jobs_use_only_what_is_public(path: Path) -> None:
    for line, name in imports(path.read_text()):
        if name.startswith("elastic_dgc"):
            assert not any(part.startswith("_") for part in name.split(".")), f"line {line}: {name}"


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("", "import elastic_dgc.step.vote"),
        ("compression", "from elastic_dgc.precision.finite import joint_norm"),
        ("precision", "import pyarrow"),
        ("exchange", "from elastic_dgc.step import vote"),
        ("step", "from elastic_dgc.data.order import Order"),
        ("data", "from elastic_dgc.keeping.storage import open_storage"),
        ("membership", "import elastic_dgc.keeping.storage"),
        ("models", "from elastic_dgc.tasks.task import Task"),
        ("tasks", "from elastic_dgc import RunConfig"),
        ("trainer", "from elastic_dgc.recipes.registry import recipe"),
        ("recipes", "import elastic_dgc.cli.main"),
        ("keeping", "import ray"),
        ("cli", "def f():\n    from ray.train import report"),
        ("ddp", "from elastic_dgc.step.plan import plan"),
        ("ddp", "import elastic_dgc.exchange.tcp"),
        ("step", "from elastic_dgc.ddp import attach"),
        ("tasks", "import elastic_dgc.log, ray.util"),
    ],
)
def test_a_planted_violation_is_found(layer: str, source: str) -> None:
    assert len(violations(layer, source)) == 1


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("", "from elastic_dgc.errors import UsageError"),
        ("compression", "import zlib, numpy, torch\nfrom elastic_dgc import config"),
        ("step", "import elastic_dgc\nfrom elastic_dgc.compression.dgc import mask"),
        ("trainer", "import ray\nfrom elastic_dgc.tasks.task import Task"),
        ("cli", "from elastic_dgc.recipes.registry import recipe"),
    ],
)
def test_what_is_allowed_is_let_through(layer: str, source: str) -> None:
    assert not violations(layer, source)
