"""Fits all kernel families of a library on one chip, says how far each is, and writes them as a part of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulator import np, paths
from simulator.calibrate.kernel_tables import TableMissing
from simulator.calibrate.library_families import families, mla_families
from simulator.calibrate.library_fit import Family, Found, fit
from simulator.calibrate.library_tables import Columns, Library, products
from simulator.calibrate.library_toml import Table, tables_of, text_of
from simulator.errors import InputError, NoSuchName
from simulator.paths import did_you_mean
from simulator.spec.machine import ChipSpec
from simulator.spec.parts import PARTS, whole_tables
from simulator.spec.typed_toml import validate

FRAMEWORKS = ("trtllm", "vllm", "sglang")
HOST_BOUND_S = {"gemm_fp8_block": 10e-6}  # a table whose shortest kernels take longer was launched by the host,
OTHERS_BOUND_S = 30e-6  # kernel by kernel; a product in blocks is two, others may search for scales before
VECTOR_SHARE = 0.75  # of HBM, by copies
GRID_BARRIER_S = 1e-6
Make = Callable[[], Family | None]


@dataclass(frozen=True)
class Line:
    """A line of the report: a family with what was found, or why nothing was; `table` is what is written of it."""

    family: str
    found: Found | None = None
    why: str = ""
    table: Table | None = None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.family:26s} {self.why}"
        held = ", ".join(f"without the {name} {error:.1%}" for name, error in self.found.held_back.items())
        shown = "; ".join(f"{name} {error}" for name, error in self.found.errors.items())
        return f"{self.family:26s} {shown}; held back: {held}{'; ' + self.why if self.why else ''}"


def chip_of(name: str) -> ChipSpec:
    """A chip that is a part of machines; NoSuchName says which there are."""
    if name not in (known := [part for part in paths.names(PARTS) if "." not in part]):
        raise NoSuchName(name, f"no chip '{name}'{did_you_mean(name, known)}: there are {', '.join(known)}")
    path = paths.find(PARTS, name)
    return validate(ChipSpec, whole_tables(path)["chip"], str(path))


def calibrate(library: Library, tell: Callable[[float], None] | None = None) -> Iterator[Line]:
    """Every family of a library, one after the other. InputError if the folder has none of its tables."""
    if library.framework not in FRAMEWORKS:
        hint = did_you_mean(library.framework, FRAMEWORKS)
        raise InputError(f"no framework '{library.framework}'{hint}: there are {', '.join(FRAMEWORKS)}")
    chip = chip_of(library.chip)
    if not library.is_there():
        raise InputError(f"{library.folder} has no table of {library.framework} on {library.chip}")
    vector = _vector(library)
    yield from (vector, _phase(vector)) if vector.table is not None else (vector,)
    own = list(families(library, chip))
    mla = list(mla_families(library, chip))
    for done, (name, source, make) in enumerate([*own, *mla], 1):
        same = library.framework == "trtllm" and library.mla_chip == library.chip
        yield _line(library, chip, name, source, make, assumed=done > len(own) and not same)
        if tell is not None:
            tell(done / (len(own) + len(mla)))


def written(library: Library, lines: list[Line]) -> str:
    """The part's file."""
    errors = "\n".join(f"  {line}" for line in lines if line.found is not None)
    framework, chip = library.framework, library.chip
    head = "\n".join((
        f"Kernels of {framework} on {chip}, as `braid calibrate kernels FOLDER --chip {chip} --framework {framework}`",
        "fits them on the tables of ai-dynamo/aiconfigurator at 095f58a (Apache-2.0). What each family launches:",
        "simulator/model/library_kernels.py. Errors, and the median error on rows held back from the search (the",
        "largest or smallest fifth of sizes):", errors))  # fmt: skip
    tables = [part for line in lines if line.table is not None for part in tables_of(line.table)]
    return text_of(framework, head, tables)


def _vector(library: Library) -> Line:
    """Element-wise kernels are in no table: the smallest product says what a launch takes."""
    try:
        seconds = products(library, "bfloat16")["seconds"]
    except TableMissing as error:
        return Line("vector", why=f"left out: {error}")
    if not len(seconds):
        return Line("vector", why="left out: the table has no products in BF16")
    shortest_s = float(np.quantile(seconds, 0.01))
    numbers = {"floor": shortest_s, "hbm_share": VECTOR_SHARE}
    source = library.source("gemm", "gemm_perf")
    return Line("vector", why="assumed: the floor of the smallest product, and copies at 0.75 of HBM", table=Table(
        "vector", "vector", numbers, source, "", assumed="the smallest product's time; copies reach about 0.75 of HBM"))


def _phase(vector: Line) -> Line:
    """A further phase of a kernel that runs already, as of an exchange that packs rows behind counting them."""
    assert vector.table is not None
    numbers = {**vector.table.numbers, "floor": GRID_BARRIER_S}
    why = "a barrier of the grid instead of a launch, published nowhere; copies as of vector"
    return Line("phase", why=f"assumed: {why}", table=replace(vector.table, name="phase", numbers=numbers, assumed=why))


def _line(library: Library, chip: ChipSpec, name: str, source: str, make: Make, assumed: bool) -> Line:
    try:
        family = make()
        if family is None:
            return Line(name, why="left out: not in the table, or the chip has no such arithmetic")
        if name.startswith("gemm_") and _shortest_s(family) > HOST_BOUND_S.get(name, OTHERS_BOUND_S):
            return _borrowed(library, chip, name, family)
    except TableMissing as error:
        return Line(name, why=f"left out: {error}")
    except KeyError as error:
        raise InputError(f"{source}: the table of {name} has no column {error}") from error
    elsewhere = "" if library.mla_chip == library.chip else f" on {library.mla_chip}"
    return _fitted(name, source, family, f"measured with TensorRT-LLM{elsewhere}" if assumed else "")


def _fitted(name: str, source: str, family: Family, assumed: str, why: str = "") -> Line:
    found = fit(family)
    law = "split_attention" if "causal" in family.columns else "stream_gemm"
    rows = sum(error.rows for error in found.errors.values())
    comment = "; ".join(f"{key} {error.median:.1%}, 90% within {error.ninth_decile:.1%}"
                        for key, error in found.errors.items())  # fmt: skip
    return Line(name, found, why, Table(name, law, found.numbers, source, f"{rows} rows, decode and prefill together",
                                        covered(family.columns), comment, assumed))  # fmt: skip


def _borrowed(library: Library, chip: ChipSpec, name: str, own: Family) -> Line:
    """Numbers of the framework whose kernels of that name are shortest, as the host's launches hide them here."""
    others = (Library(library.folder, library.chip, one) for one in FRAMEWORKS if one != library.framework)
    made = [(source, make()) for other in others if other.is_there() for same, source, make in families(other, chip)
            if same == name]  # fmt: skip
    usable = [(_shortest_s(family), source, family) for source, family in made
              if family is not None and _shortest_s(family) <= HOST_BOUND_S.get(name, OTHERS_BOUND_S)]  # fmt: skip
    if not usable:
        return Line(name, why=f"left out: launched by the host, {1e6 * _shortest_s(own):.0f} us each")
    _, source, family = min(usable, key=lambda one: one[0])
    why = f"the table's own rows are launched by the host, {1e6 * _shortest_s(own):.0f} us each"
    return _fitted(name, source, family, why, why)


def _shortest_s(family: Family) -> float:
    return float(np.quantile(family.columns["seconds"], 0.01))


def covered(columns: Columns) -> str:
    """Sizes of a table as `covers` has them (see `die.coverage`)."""
    if "causal" in columns:
        names = {"sequences": "batch", "queries": "queries", "keys": "keys", "heads": "heads", "kv_heads": "kv_heads",
                 "head_dim": "head_dim", "window": "window"}  # fmt: skip
    elif "local" in columns:
        names = {"m": "rows", "groups": "groups"}
    else:
        names = {"m": "m", "n": "n", "k": "k"}
    sizes = {name: columns[key] for name, key in names.items() if key in columns}
    if "m" in sizes and "local" not in columns and "groups" in columns:  # as many rows of each group
        sizes["m"] = columns["m"] * columns["groups"]
    if "heads" in sizes:
        sizes["sharing"] = columns["heads"] // columns["kv_heads"]
    return ", ".join(f"{name} {int(each.min())}..{int(each.max())}" for name, each in sizes.items())
