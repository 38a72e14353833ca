"""A step written down is a file of Python that says what was asked, whatever texts a model or a setting has."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from simulator.study.scenario import Scenario
from simulator.study.step import StepWords, in_a_docstring, saved, step_of
from tests.conftest import ROOT

EVIL = '"""; import os; os.abort()\n"""\\'


@pytest.fixture
def step(tmp_path: Path) -> Scenario:
    """Of a model whose file, which is data, has a name like that."""
    text = (ROOT / "workloads/models/llama_2_7b.toml").read_text(encoding="utf-8")
    named = re.sub("(?m)^name = .*$", lambda _: f"name = {json.dumps(EVIL)}", text, count=1)
    (tmp_path / "mine.toml").write_text(named, encoding="utf-8")
    words = {"batch.requests": "4", "knobs.precision": "all=fp8"}
    return step_of(StepWords(str(tmp_path / "mine.toml"), "dgx_h100", "vllm", "tp=1", "decode", words))


def test_no_text_of_a_model_or_a_setting_becomes_code(step: Scenario) -> None:
    assert EVIL in step.full_title
    parsed = ast.parse(saved(step.variant(changes={**step.changes, "knobs.precision": EVIL})))
    (function,) = (one for one in parsed.body if isinstance(one, ast.FunctionDef))
    docstring, returned = function.body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(returned, ast.Return)
    assert [repr(EVIL)] == [ast.unparse(one) for one in ast.walk(returned)
                            if isinstance(one, ast.Constant) and one.value == EVIL]
    assert not [one for one in ast.walk(parsed) if isinstance(one, ast.Import)]


@pytest.mark.parametrize("text", [EVIL, "\\", '"', "\0", "a\nb"])
def test_a_docstring_is_not_ended_by_what_is_in_it(text: str) -> None:
    (only,) = ast.parse(f'"""{in_a_docstring(text)}."""').body
    assert isinstance(only, ast.Expr)
