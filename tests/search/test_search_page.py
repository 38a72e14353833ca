"""The page of a search: which points are drawn how, what is said of the best, and no text becomes markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from simulator.observe.page.document import Page, document
from simulator.search.deployment import Ask, Deployment, Engine, Found
from simulator.search.page import MOST_POINTS, search_page

EVIL = "</script><script>alert(1)</script>"
ASK = Ask("llama_3_1_70b", "dgx_h100", 8, 16, 4096, 1024, ttft_ms=1000.0, tpot_ms=40.0)


def found(stack: str, mesh: str, user: float, gpu: float, apart: bool = False, **changed: Any) -> Found:
    before = Engine(stack, "tp=2") if apart else None
    one = Found(Deployment(Engine(stack, mesh), before), 1, int(apart), 8, 64, 512.5, 1000.0 / user, gpu, user, "TPOT")
    return replace(one, **changed)


BEST = [found("vllm", "tp=8", 80.0, 300.0), found("sglang", "tp=4", 50.0, 900.0),
        found("sglang", "tp=2", 30.0, 1500.0, apart=True, stopped_by="prefill")]  # fmt: skip
OTHERS = [found("vllm", "tp=4", 40.0, 400.0), found("sglang", "tp=8", 20.0, 700.0)]


def page(top: list[Found] = BEST, **given: Any) -> Page:
    wanted = {"points": [*BEST, *OTHERS], "front": BEST, "refused": {"does not fit": 7, "ep=3 divides nothing": 40},
              "dropped": 12, "notes": ["A note."]} | given
    return search_page(ASK, top=top, **wanted)


def section(made: Page, name: str) -> str:
    return next(one.body for one in made.sections if one.name == name)


def cells_of(markup: str) -> list[str]:
    return [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", markup)]


def traces(made: Page) -> dict[str, list[dict[str, Any]]]:
    """Of the chart, by name."""
    text = re.search(r'<script type="application/json">(.*?)</script>', section(made, "front"))
    assert text is not None
    by_name: dict[str, list[dict[str, Any]]] = {}
    for trace in json.loads(text[1])["data"]:
        by_name.setdefault(trace["name"], []).append(trace)
    return by_name


def test_every_point_is_drawn_in_the_colour_of_its_stack_and_roles() -> None:
    drawn = traces(page())
    faint = {name: found for name, (found, *_) in drawn.items() if name not in ("front", "best")}
    strong = {name: found for name, (*_, found) in drawn.items() if name in faint}
    assert {name: sorted(zip(one["x"], one["y"], strict=True)) for name, one in faint.items()} == {
        "vllm, roles together": [(40.0, 400.0), (80.0, 300.0)],
        "sglang, roles together": [(20.0, 700.0), (50.0, 900.0)],
        "sglang, roles apart": [(30.0, 1500.0)]}  # fmt: skip
    assert len({one["marker"]["color"] for one in faint.values()}) == 3
    assert all(one["marker"]["opacity"] < 0.5 and not one["showlegend"] for one in faint.values())
    assert {name: (one["x"], one["marker"]["color"] == faint[name]["marker"]["color"])
            for name, one in strong.items()} == {"vllm, roles together": ([80.0], True),
                                                 "sglang, roles together": ([50.0], True),
                                                 "sglang, roles apart": ([30.0], True)}  # fmt: skip


def test_the_front_is_a_line_from_few_tokens_of_a_user_to_many() -> None:
    (line,) = traces(page())["front"]
    assert line["mode"] == "lines"
    assert (line["x"], line["y"]) == ([30.0, 50.0, 80.0], [1500.0, 900.0, 300.0])
    dots = traces(page())["sglang, roles apart"][1]
    assert dots["text"] == [
        "1 x sglang tp=2 tokens=8192 prefill<br>1 x sglang tp=2 tokens=8192<br>"
        "64 requests each; TTFT 512.5 ms, TPOT 33.33 ms<br>8 GPUs; stopped by prefill"]


def test_a_group_without_a_point_on_the_front_has_its_place_in_the_legend() -> None:
    assert traces(page(points=[*BEST, found("trtllm", "tp=8", 9.0, 9.0)]))["trtllm, roles together"][1]["x"] == [None]


def test_the_best_have_their_numbers_and_what_stops_them() -> None:
    """Joules are of 1275 W of a card: no price is given, and no request was served one by one."""
    cells = cells_of(section(page(), "best"))
    assert cells[:13] == ["", "engines", "prefill", "stack", "settings", "requests", "TTFT, ms", "TPOT, ms",
                          "tok/s/GPU", "tok/s/user", "J/token", "GPUs", "stopped by"]
    rows = [cells[at:at + 13] for at in range(13, len(cells), 13)]
    assert rows[0] == ["1", "1 x tp=8", "-", "vllm", "tokens=8192", "64", "512.5", "12.50", "300", "80", "4.250", "8",
                       "TPOT"]
    assert rows[2][2:5] == ["1 x tp=2", "sglang", "tokens=8192; prefill: tokens=8192"]
    assert rows[2][-1] == "prefill"


def test_what_is_known_has_a_column() -> None:
    served = [replace(one, served=True, ttft_p99_ms=900.5, tpot_p99_ms=35.0) for one in BEST]
    cells = cells_of(section(page(top=served, dollars_per_gpu_hour=3.6), "best"))
    assert [cell for cell in cells[:16] if cell.startswith(("p99", "$"))] == ["p99", "p99 ", "$/M tokens"]
    assert cells[16 + 12] == "3.333"


def test_commands_are_those_of_the_stack() -> None:
    commands = section(page(), "commands")
    assert commands.count("launched with sglang") == 2
    assert "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 8" in commands
    assert commands.count("braid step --model llama_3_1_70b --machine dgx_h100") == 6


def test_what_was_left_out_is_counted_by_reason() -> None:
    assert cells_of(section(page(), "refused")) == [
        "reason", "deployments", "ep=3 divides nothing", "40", "its roofline cannot reach the front", "12",
        "does not fit", "7"]  # fmt: skip
    assert not [one for one in page(refused={}, dropped=0).sections if one.name == "refused"]


def test_many_points_are_thinned_out_and_the_front_is_not() -> None:
    many = [replace(OTHERS[0], tok_s_per_user=1.0 + place) for place in range(2 * MOST_POINTS + 1)]
    made = page(points=many)
    assert len(traces(made)["vllm, roles together"][0]["x"]) == len(many[::3])
    assert len(traces(made)["front"][0]["x"]) == 3
    assert "One point in 3 is drawn, and all of the front." in section(made, "front")


def test_nothing_found_is_said() -> None:
    made = page(top=[], points=[], front=[])
    text = document(made, "/* plotly */")
    assert "No deployment keeps the limits." in text
    assert "None keeps TTFT 1000 ms and TPOT 40 ms." in text


@pytest.mark.parametrize("where", ["stack", "refused", "notes"])
def test_no_text_becomes_markup(where: str) -> None:
    given: dict[str, Any] = {"stack": {"points": [found(EVIL, EVIL, 1.0, 1.0)]}, "refused": {"refused": {EVIL: 1}},
                             "notes": {"notes": [EVIL]}}[where]
    assert "<script>alert" not in document(page(**given), "/* plotly */")
