"""docs/seeds.md and the tests of the seeds say the same: every test it names exists, and every test is named there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "seeds.md").read_text()


@pytest.mark.parametrize("name", ["test_paddle_models_3145", "test_pytorch_examples_311"])
def test_the_page_names_the_tests_that_there_are(name: str) -> None:
    tree = ast.parse((HERE / f"{name}.py").read_text())
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    start = PAGE.index(f"tests/seeds/{name}.py")
    section = PAGE[start:].split("\n## ", 1)[0]
    assert set(re.findall(r"`(test_\w+)`", section)) == there
