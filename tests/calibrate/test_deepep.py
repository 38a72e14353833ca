"""A fit of DeepEP's kernels finds the numbers that a table was made from; what it computes is what is simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from simulator.calibrate.deepep import FITTED, Kind, Row, errors_of, fitted, low_latency_s, normal_s, with_numbers
from simulator.errors import InputError
from simulator.spec.load import load_machine
from simulator.study.library import load_scenario
from simulator.study.simulate import simulate
from tests.conftest import Outcome

SIZES = [(tokens, hidden, 8, 256) for tokens in (1, 16, 128, 1024) for hidden in (2048, 7168)]
TRUE: dict[Kind, tuple[float, float]] = {"ll": (8e-6, 200e9), "normal": (15e-6, 60e9)}


def table(kind: Kind, numbers: tuple[float, float]) -> list[Row]:
    """What a machine with these numbers takes, as a table."""
    spec = with_numbers(load_machine("dgx_h100"), kind, *numbers)
    sized = [Row(*size, sms, 0.0, 0.0) for size in SIZES for sms in ((0,) if kind == "ll" else (4, 24))]
    seconds = low_latency_s if kind == "ll" else normal_s
    return [row._replace(dispatch_s=found[0], combine_s=found[1]) for row in sized for found in [seconds(spec, row)]]


@pytest.mark.parametrize("kind", FITTED)
def test_a_fit_finds_the_numbers_that_a_table_was_made_from(kind: Kind) -> None:
    rows = table(kind, TRUE[kind])
    spec, found = fitted(load_machine("dgx_h100"), kind, rows)
    assert found == pytest.approx(TRUE[kind], rel=0.02)
    assert max(abs(error) for row in rows for error in errors_of(spec, kind, row)) < 0.02


@pytest.mark.parametrize(("name", "tokens", "sms"), [("h100_decode", 8, 0), ("h100_decode", 512, 0),
                                                     ("h100_normal", 256, 24), ("h100_normal", 4096, 4)])  # fmt: skip
def test_it_is_what_the_exchange_takes(name: str, tokens: int, sms: int) -> None:
    more = {"knobs.sms": str(sms)} if sms else {}
    scenario = load_scenario(f"deepep:{name}").replace({"batch.per_rank": str(tokens), "routing.skew": "none", **more})
    metrics = simulate(scenario).metrics
    found = (normal_s if sms else low_latency_s)(scenario.machine_spec(), Row(tokens, 7168, 8, 256, sms, 0.0, 0.0))
    assert (metrics["dispatch_us"], metrics["combine_us"]) == pytest.approx([one * 1e6 for one in found], rel=0.03)


def write(folder: Path, kind: Kind, rows: list[Row]) -> None:
    path = folder / "h100_sxm" / "comm" / "sglang" / "1.0"
    path.mkdir(parents=True, exist_ok=True)
    time = "avg_t_us" if kind == "ll" else "transmit_us"
    parquet.write_table(pyarrow.Table.from_pylist([
        {"node_num": 1, "num_token": row.tokens, "hidden_size": row.hidden, "num_topk": row.chosen,
         "num_experts": row.experts, **({"dispatch_sms": row.sms} if row.sms else {}),
         f"dispatch_{time}": row.dispatch_s * 1e6, f"combine_{time}": row.combine_s * 1e6} for row in rows
    ]), path / f"wideep_deepep_{kind}_perf.parquet")  # fmt: skip


def test_the_command_says_how_far_the_machine_is(tmp_path: Path, braid: Callable[..., Outcome]) -> None:
    machine = load_machine("dgx_h100")
    for kind in FITTED:
        floor = machine.exchange_kernels[FITTED[kind][0][0]].floor_s
        rate = 262e9 if kind == "ll" else 45.1e9
        write(tmp_path, kind, table(kind, (floor, rate)))
    found = json.loads(braid("calibrate", "deepep", tmp_path, "--json").out)
    assert {one["what"] for one in found} == {f"deepep {kind} {block}" for kind in FITTED
                                             for block in ("dispatch", "combine")}  # fmt: skip
    assert all(one["numbers"]["median_error"] < 1e-6 for one in found)
    assert any("24 SMs" in one["text"] for one in found)


def test_a_machine_without_tables_or_kernels_is_refused(tmp_path: Path) -> None:
    from simulator.calibrate.deepep import compare

    with pytest.raises(InputError, match="machine dgx_a100 has no kernels of DeepEP"):
        list(compare(tmp_path, "dgx_a100"))
    with pytest.raises(InputError, match="no table"):
        list(compare(tmp_path, "dgx_h100"))
