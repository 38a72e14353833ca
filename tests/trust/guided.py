"""Feeds readers with bytes that coverage guides: what reached a new line of Braid is changed further (atheris).

Atheris has wheels for Linux and Python 3.11 to 3.13; it is not installed with Braid:

    pip install atheris
    python -m tests.trust.guided requests -max_total_time=60
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from simulator.errors import BraidError
from tests.trust.readers import DETAILS, KINETO, LINES, MSPROF, POINT, ROOT, SPACE
from tests.trust.variants import toml_text

Read = Callable[[Path], object]
FILES = {"requests": "requests.dat", "machine": "machine.toml", "model": "model.toml", "config": "config.json",
         "measured": "trace.json", "points": "points.jsonl", "space": "space.toml"}  # fmt: skip


def _seeds(target: str) -> list[str]:
    """Texts of valid files to begin with."""
    return {"requests": [*LINES.values()], "machine": [(ROOT / "tests/data/tiny.toml").read_text(encoding="utf-8")],
            "model": [(ROOT / "workloads/models/llama_2_7b.toml").read_text(encoding="utf-8")],
            "config": [(ROOT / "tests/data/configs/qwen3_8b.json").read_text(encoding="utf-8")],
            "measured": [json.dumps(KINETO), json.dumps(MSPROF), DETAILS], "points": [json.dumps(POINT)],
            "space": [toml_text(SPACE)]}[target]  # fmt: skip


def _reader(target: str) -> Read:
    """What reads such a file, as the commands do."""
    from simulator.commands.sides import read
    from simulator.model.library import load_transformer
    from simulator.search.asked import axes
    from simulator.serving.points import read_points
    from simulator.serving.traces import read_trace
    from simulator.spec.load import load_machine

    readers: dict[str, Read] = {
        "requests": read_trace, "machine": load_machine, "model": load_transformer, "config": load_transformer,
        "measured": lambda path: read("A", str(path)).as_object(), "points": lambda path: read_points(path, {}),
        "space": lambda path: axes(path, (), ())}  # fmt: skip
    return readers[target]


def main() -> None:
    """Runs one target until it is ended, or until an input raises what is no refusal; options are libFuzzer's."""
    if len(sys.argv) < 2 or sys.argv[1] not in FILES:
        sys.exit(f"usage: python -m tests.trust.guided TARGET [-max_total_time=S ...]; targets are {', '.join(FILES)}")
    import atheris

    target = sys.argv.pop(1)
    with atheris.instrument_imports(include=["simulator"]):
        reads = _reader(target)
    with tempfile.TemporaryDirectory(prefix="braid-fuzz-") as place:
        folder, corpus = Path(place), Path(place) / "corpus"
        corpus.mkdir()
        for number, text in enumerate(_seeds(target)):
            (corpus / f"seed-{number}").write_text(text, encoding="utf-8")

        def once(data: bytes) -> None:
            file = folder / FILES[target]
            file.write_bytes(data)
            try:
                reads(file)
            except BraidError as error:
                if file.name not in str(error):
                    raise ValueError(f"a refusal names no file: {error}") from error

        atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
