"""The picture of a layer, as it reads without colour."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from simulator.observe.layer_picture import layer_picture
from tests.observe.hand import comm, task, timeline

US = 10**6

# two micro-batches of layer 1 between layers 0 and 2
TWO = [
    task("experts", 0, 20 * US, layer=0, micro_batch=1),
    task("attention", 20 * US, 60 * US, layer=1, micro_batch=0),
    comm("dispatch", 70 * US, 100 * US, ready=60 * US, layer=1, micro_batch=0),
    task("attention", 60 * US, 100 * US, layer=1, micro_batch=1),
    comm("dispatch", 100 * US, 130 * US, layer=1, micro_batch=1),
    task("experts", 100 * US, 140 * US, layer=1, micro_batch=0),
    comm("combine", 140 * US, 170 * US, layer=1, micro_batch=0),
    task("experts", 140 * US, 180 * US, layer=1, micro_batch=1),
    comm("combine", 180 * US, 220 * US, layer=1, micro_batch=1),
    task("attention", 180 * US, 240 * US, layer=2, micro_batch=0),
]
GOLDEN = """\
rank 0, layer 1: 200 us long, starts 20 us into the run, the next 160 us later
main |AAAAAAAAAAAAaaaaaaaaaaaaEEEEEEEEEEEEeeeeeeeeeeee::::::::::::|
comm |            ~~~DDDDDDDDDddddddddd   CCCCCCCCC   cccccccccccc|
us    0              50             100            150         200
A attention 80 us   D dispatch 60 us   E experts 80 us
C combine 70 us
~ waiting for cores or peers, : another layer, small letters: odd micro-batches
times are of this layer, added up over the streams
"""


def test_two_micro_batches_of_a_layer() -> None:
    assert layer_picture(timeline(TWO).columns(), rank=0, layer=1, width=67).plain == GOLDEN.rstrip()


def test_it_fits_a_terminal_and_is_plain_text_in_a_file() -> None:
    file = io.StringIO()
    Console(file=file, width=100).print(layer_picture(timeline(TWO).columns(), rank=0, layer=1))
    lines = file.getvalue().splitlines()
    assert len(lines) == 7
    assert max(map(len, lines)) <= 100
    assert lines[1].startswith("main |AAAAA")
    assert "\x1b" not in file.getvalue()


def test_a_layer_late_in_a_run_reads_in_a_fitting_unit() -> None:
    columns = timeline([task("a", 1_299_210 * US, 1_299_300 * US, layer=0)]).columns()
    assert layer_picture(columns, rank=0).plain.startswith("rank 0, layer 0: 90 us long, starts 1.299 s into the run\n")


def test_colour_follows_the_name() -> None:
    picture = layer_picture(timeline(TWO).columns(), rank=0, layer=1, width=67)
    styles = {picture.plain[span.start]: str(span.style) for span in picture.spans}
    assert styles["A"] == styles["a"] == "black on cyan"
    assert len({styles[letter] for letter in "ADEC"}) == 4


def test_the_middle_layer_is_the_default() -> None:
    columns = timeline([task(f"t{layer}", layer * US, (layer + 1) * US, layer=layer) for layer in range(5)]).columns()
    picture = layer_picture(columns, rank=0).plain
    assert picture.startswith("rank 0, layer 2: 1 us long, starts 2 us into the run, the next 1 us later\n")


def test_tasks_that_share_a_first_letter_get_letters_of_their_own() -> None:
    names = ["gate", "gemm", "ga", "gg"]
    picture = layer_picture(timeline([
        task(name, place * US, (place + 1) * US, layer=0) for place, name in enumerate(names)]).columns(), 0, 0, 27)
    assert picture.plain.splitlines()[1] == "main |GGGGGEEEEEAAAAABBBBB|"


def test_a_task_too_short_for_a_cell_is_in_the_legend_only() -> None:
    picture = layer_picture(timeline([
        task("long", 0, 1000 * US, layer=0), task("tiny", 1000 * US, 1000 * US + 5, layer=0)]).columns(), 0, 0, 60)
    assert "T tiny 5 ps" in picture.plain
    assert "T" not in picture.plain.splitlines()[1]


def test_an_absent_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 0 has no task of layer 7"):
        layer_picture(timeline(TWO).columns(), 0, 7)


def test_a_layer_without_length_is_drawn_too() -> None:
    assert "T t 0 us" in layer_picture(timeline([task("t", 5, 5, layer=0)]).columns(), 0, 0).plain
