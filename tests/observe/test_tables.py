"""Tables as they are read: names broken where names may be, numbers of a column alike, no blanks at the end."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from simulator.observe.tables import Titled, broken, show
from simulator.units import alike

NAMES = ("collectives.sdma.ladder.default.0.rate", "kernels.cann_recipes_2025.flash_attention_ntd.score_bytes",
         "cm384_decode:decode_length_aware")  # fmt: skip
ROWS = [(NAMES[0], "14.5%", 1100.123, "published", "by bytes, of vector-core kernels over 32 ranks: a README"),
        (NAMES[1], "5.2%", 0.0531, "fitted", "prefill optimisation on Atlas A3"),
        (NAMES[2], "4.2%", 9.3381, "derived", "achieved by weight-bound kernels: tensor_cast/device.py at 84fec85")]
TABLE = Titled("what bounded it", ("<parameter", ">twice saves", ">ms", "<kind", "~source"), ROWS)


def printed(width: int) -> list[str]:
    """Its lines on a terminal as wide as that, without colours."""
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=True, no_color=True), TABLE)
    return re.sub(r"\x1b\[\d+m", "", file.getvalue()).splitlines()


def test_names_break_at_dots_underscores_and_colons_alone() -> None:
    lines = printed(80)
    assert max(map(len, lines)) <= 80
    first = [line.split()[0] for line in lines[3:] if line and not line.startswith(" ")]
    assert "".join(first) == "".join(NAMES)
    ends = [one for one in first if not any(name.endswith(one) for name in NAMES)]
    assert ends
    assert all(one[-1] in "._:" for one in ends), ends


def test_words_of_a_text_break_there_too() -> None:
    assert not [line for line in printed(76) if line.endswith("device.p")]


def test_numbers_are_never_broken() -> None:
    text = "\n".join(printed(70))
    assert all(whole in text for whole in ("1,100.123", "14.5%", "published"))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_ends_in_blanks(width: int) -> None:
    assert all(line == line.rstrip() for line in printed(width))


def test_a_name_on_lines_of_some_width() -> None:
    assert broken("a_prefill:micro.batch", 10) == "a_prefill:\nmicro.\nbatch"
    assert broken("short", 10) == "short"


@pytest.mark.parametrize(("values", "texts"), [
    ([1100.1234, 488.3, 0.05312, 9.338], ["1,100.123", "488.300", "0.053", "9.338"]),
    ([467.6, 303.01, 0.2091], ["467.60", "303.01", "0.21"]),
    ([82037.2, 40988.7], ["82,037", "40,989"]),
    ([32, 64.0, 1024], ["32", "64", "1,024"]),
    ([0.0531, None, 0], ["0.05310", "-", "0.00000"]),
    ([-2.5, 1.25], ["-2.500", "1.250"]),
    ([math.inf, 1.5, 20.25], ["inf", "1.50", "20.25"]),
    ([], []),
])  # fmt: skip
def test_numbers_of_a_column_have_as_many_decimals(values: list[float | None], texts: list[str]) -> None:
    assert alike(values) == texts
