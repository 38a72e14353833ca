"""A fitted library as a part of a machine: [kernels.FRAMEWORK.FAMILY] tables, every number with its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.calibrate.library_families import ENGINE
from simulator.calibrate.library_fit import Numbers

_TIMES = {"floor": "us", "tile_latency": "us", "combine": "us", "serial_per_k": "ps", "per_slot": "ns", "per_row": "ps",
          "per_query": "ps"}  # fmt: skip
_PER = {"us": 1e6, "ns": 1e9, "ps": 1e12}
_SORT = ("floor", "per_slot", "per_row")
_UNWRITTEN = ("warm",)


@dataclass(frozen=True)
class Table:
    """A family as it is written. fitted_on: the table's rows in words; assumed: why the numbers are those of others."""

    name: str
    law: str
    numbers: Numbers
    source: str
    fitted_on: str
    covers: str = ""
    comment: str = ""
    assumed: str = ""


def tables_of(table: Table) -> Iterator[Table]:
    """The family itself; routed experts are three, as the search found the numbers of their whole chain."""
    if not table.name.startswith("grouped_gemm_"):
        yield table
        return
    end, given = table.name.removeprefix("grouped_gemm_"), table.numbers
    passes = {"hbm_share": given["vector_share"]}  # of which the first alone is launched, and none computes
    sort = {name: given[name] for name in _SORT if name in given}
    product = {name: value for name, value in given.items() if name not in (*_SORT, "vector_share", "per_copy")}
    copies = {"per_row": given["per_copy"]} if "per_copy" in given else {}
    chain = "Chain of experts_sort, grouped_gemm, experts_sum, grouped_gemm, experts_sum: "
    yield replace(table, numbers=product, comment=chain + table.comment)
    yield replace(table, name=f"experts_sort_{end}", law="vector", numbers={**sort, **passes}, covers="", comment="")
    yield replace(table, name=f"experts_sum_{end}", law="vector", numbers={**copies, **passes}, covers="", comment="")


def text_of(framework: str, head: str, tables: list[Table]) -> str:
    """The whole file. head: what its comment says, lines without the mark."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    for one in tables:
        lines += ["", *_lines(framework, one)]
    return "\n".join(lines) + "\n"


def _lines(framework: str, table: Table) -> Iterator[str]:
    if table.comment:
        yield f"# {table.comment}"
    yield f"[kernels.{framework}.{table.name}]"
    yield f'law = "{table.law}"'
    if table.covers:
        yield f'covers = "{table.covers}"'
    cuda = 'kind = "published", confidence = "H", source = "a thread block runs on one SM: CUDA C++ programming guide"'
    yield f'cores.{ENGINE} = {{ value = 1, unit = "1", {cuda} }}'
    for name, value in table.numbers.items():
        if name not in _UNWRITTEN:
            yield _line(name, value, table)


def _line(name: str, value: float, table: Table) -> str:
    unit = _TIMES.get(name, "1")
    shown = f"{float(f'{value * _PER.get(unit, 1.0):.3g}'):.10g}"
    if table.assumed:
        return (f'{name} = {{ value = {shown}, unit = "{unit}", kind = "assumed", confidence = "L", '
                f'source = "{table.source}", note = "{table.assumed}" }}')  # fmt: skip
    return (f'{name} = {{ value = {shown}, unit = "{unit}", kind = "fitted", confidence = "M", '
            f'source = "{table.source}", fitted_on = "{table.fitted_on}" }}')  # fmt: skip
