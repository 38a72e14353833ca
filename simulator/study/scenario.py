"""A scenario: a machine, a model, a workload with its knobs, and the published values it is held against.

A scenario is what a function of a scenario file returns. A variant calls its parent and replaces two fields::

    def microbatch() -> Scenario:
        return dp().variant(title="...", workload=MICRO_BATCH, expected=(...))

Every leaf is a setting that the command line can change ("batch.requests=128"), and so is every number of the machine
("machine.chip.hbm.peak=3.2 TB/s") and of the model ("model.shapes.layers=4").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, SerializeAsAny, model_validator

from simulator.errors import InputError
from simulator.model.expert_state import ExpertState
from simulator.model.library import transformer_of
from simulator.model.transformer import Model
from simulator.program.rank import Rank
from simulator.program.world import Groups
from simulator.spec.faults import Fault
from simulator.spec.levels import LINK_SETTINGS
from simulator.spec.load import load_machine, override
from simulator.spec.machine import MachineSpec
from simulator.spec.model import ModelShapes, load_model, override_model, shapes_of
from simulator.spec.typed_toml import quantities
from simulator.study.batch import Part, Prompts, Requests
from simulator.study.reads import Reads
from simulator.study.settings import leaves, replaced


class Layout(Part):
    """How many ranks share what."""

    expert_parallel: PositiveInt = 1
    tensor_parallel: PositiveInt = 1


class RoutingSpec(Part):
    """Expert load: forced even without a skew; drawn from a power law with one (0 is even popularity)."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    skew: float | None = Field(
        None, ge=0, le=50, allow_inf_nan=False,
        description="of a power law that experts are drawn from (0: even popularity); none: load forced even",
    )  # fmt: skip
    state: ExpertState | None = Field(
        None, exclude=True, description="popularities and placements of every layer, instead of those that follow"
    )


class Expected(Part):
    """A published value of a metric.

    role: fit (a parameter was fitted on it, so it proves nothing) or predict. against: the metric is the ratio to that
    of this other scenario (a gain, or with a band like (1, None) a sign). beyond: the difference from that of this one.
    band: the source gives a range, or a sign; inside it there is no error. note: the source, and the reason of a miss.
    """

    id: str
    metric: str
    value: float
    role: Literal["fit", "predict"]
    against: str = ""
    beyond: str = ""
    band: tuple[float | None, float | None] | None = None
    note: str = ""

    @property
    def full_metric(self) -> str:
        """The metric, and what it is a ratio to or a difference from."""
        if self.beyond:
            return f"{self.metric} - {self.beyond}"
        return f"{self.metric} / {self.against}" if self.against else self.metric


@dataclass(frozen=True)
class Source:
    """Where values were published; its name begins their notes."""

    name: str

    def expects(self, number: str, metric: str, value: float, note: str = "",
                role: Literal["fit", "predict"] = "predict", **more: Any) -> Expected:
        """A value of it, by its number; note and more fields as an `Expected` has them."""
        return Expected(id=number, metric=metric, value=value, role=role, note=f"{self.name}{note}", **more)


class Study(Part):
    """How metrics depend on one setting: `key` takes each of `values`, for this scenario and those of `beside`."""

    title: str
    key: str
    values: tuple[str, ...]
    metrics: tuple[str, ...]
    beside: tuple[str, ...] = ()


class LadderStep(Part):
    """One step of a ladder: what it does, and the settings that it changes; those of the steps before it stay."""

    title: str
    changes: dict[str, str]


BatchT = TypeVar("BatchT", bound=BaseModel, covariant=True)
LayoutT = TypeVar("LayoutT", bound=BaseModel, covariant=True)
KnobsT = TypeVar("KnobsT", bound=BaseModel, covariant=True)


@dataclass(frozen=True)
class Case(Generic[BatchT, LayoutT, KnobsT]):
    """What a rank program may read: the model, ranks, batch, layout, routing, knobs, the seed of all draws, how much
    memory of a rank can be used, the software generation of its kernels, what drives collectives between how many
    neighbours, how many ranks reach each other below the outermost level of its fabric (a node), the data types that
    its cores multiply, the machine's name, and how many cores of each pool its chip has. A workload says which of these
    it reads: `Case[Prompts, Layout, Knobs]`.
    """

    read_model: Callable[[], Model]
    read_shapes: Callable[[], ModelShapes]
    cards: int
    ranks: int
    batch: BatchT
    layout: LayoutT
    routing: RoutingSpec
    knobs: KnobsT
    seed: int
    usable_bytes: float = inf
    kernels: str = ""
    engines: Mapping[str, int] = field(default_factory=dict)
    node_ranks: int = 1
    port_ranks: int = 1
    dtypes: frozenset[str] = frozenset()
    machine: str = ""
    cores: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        """The model as layers of modules."""
        return self.read_model()

    @cached_property
    def shapes(self) -> ModelShapes:
        """The sizes of a model that are the same in all its layers; InputError for one whose layers differ."""
        return self.read_shapes()


def decode_measures(case: Case[Requests, Any, Any], seconds: float) -> Mapping[str, float]:
    """Iteration time, time per output token (TPOT), and output tokens per second and card."""
    tpot_s = seconds / case.batch.tokens_per_iteration
    per_card = sum(map(len, case.batch.held)) / case.cards if case.batch.held else case.batch.per_card
    rate = per_card / tpot_s
    return {"iteration_ms": seconds * 1e3, "tpot_ms": tpot_s * 1e3, "throughput_tok_s_per_card": rate}


def prefill_measures(case: Case[Prompts, Any, Any], seconds: float) -> Mapping[str, float]:
    """Time to first token (TTFT) of the whole batch, and prompt tokens per second, of all and per card."""
    rate = sum(case.batch.lengths) / seconds
    return {"latency_ms": seconds * 1e3, "ttft_ms": seconds * 1e3, "throughput_tok_s": rate,
            "throughput_tok_s_per_card": rate / case.cards}


MemoryItem = tuple[str, str, float]  # name, category, bytes on one rank


class Workload(NamedTuple):
    """A rank program with what goes with it.

    program: records one rank (none: hosts do it all). groups: the case's groups of ranks (left out: all of them in
    "world"). coordinates: what a rank may ask about itself beside its number. memory: items that the fullest rank keeps
    in HBM. measures: metrics from the makespan in seconds (left out: the latency).
    live: what the host of every rank does beside it: a generator of a `live.host.Host` and the case, which reacts to
    time. readings: metrics from the columns of the timeline. has_hosts: whether hosts take part in this case, where
    there is a `live`; alike: whether those of ranks with one program then do the same, each seen from its own place
    (else every rank is simulated by itself). data_parallel: groups of ranks that have requests of
    their own, as `batch.working_on` takes them (left out: all ranks are one).
    """

    program: Callable[[Rank, Case], None] = lambda npu, case: None
    groups: Callable[[Case], Groups] = lambda case: {"world": [tuple(range(case.ranks))]}
    coordinates: Callable[[Case, int], Mapping[str, object]] = lambda case, rank: {}
    memory: Callable[[Case], list[MemoryItem]] = lambda case: []
    measures: Callable[[Case, float], Mapping[str, float]] = lambda case, seconds: {"latency_ms": seconds * 1e3}
    live: Callable[[Any, Case], Any] | None = None
    readings: Callable[[Case, Mapping[str, Any]], Mapping[str, float]] | None = None
    has_hosts: Callable[[Case], bool] = lambda case: True
    alike: Callable[[Case], bool] = lambda case: False
    data_parallel: Callable[[Case], int] = lambda case: 1


class Scenario(Part):
    """A system under a load. `cards` are what is bought; a card may carry several dies, each of them a rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = ""
    title: str = Field(description="for people; {model} in it is the name of the model")
    machine: str = Field(description="name in topologies/, or path of a .toml file")
    model: str = Field(description="name in workloads/models/, or path of a .toml file or a config.json")
    kernels: str = Field(description="software generation of the kernels, one of the machine's")
    cards: PositiveInt = Field(description="what is bought; a card may carry several dies, each of them a rank")
    batch: SerializeAsAny[Part]
    layout: SerializeAsAny[BaseModel] = Layout()
    routing: RoutingSpec = RoutingSpec()
    knobs: SerializeAsAny[BaseModel]
    launch_jitter: float = Field(
        0.0, ge=0, le=3, description="every launch of a host takes its time times a log-normal factor of mean 1, drawn"
        " rank by rank: sigma of its logarithm (0: none); a captured graph is one launch"
    )
    kernel_jitter: float = Field(
        0.0, ge=0, le=3, description="the same of every kernel: of its latency, its compute and the rates that are its"
        " own"
    )
    free: tuple[str, ...] = Field(
        (), description="blocks of the program (the first words of its tasks' names) that take no time, no bytes and no"
        " cores: what if they were free? Ranks still meet in them"
    )
    workload: Workload = Field(exclude=True)
    expected: tuple[Expected, ...] = Field((), exclude=True)
    studies: tuple[Study, ...] = Field((), exclude=True)
    faults: tuple[Fault, ...] = Field((), exclude=True, description="what strikes its machine, and when")
    ladder: tuple[LadderStep, ...] = Field((), exclude=True)
    machine_changes: dict[str, str] = Field({}, exclude=True)
    model_changes: dict[str, str] = Field({}, exclude=True)
    changes: dict[str, str] = Field({}, exclude=True, description="what `replace` changed, for the header")
    file_changes: dict[str, str] = Field({}, exclude=True, description="of these, what its own file changed")

    @model_validator(mode="after")
    def _names_its_values(self) -> Scenario:
        if len({(one.id, one.metric, one.against) for one in self.expected}) < len(self.expected):
            raise ValueError("two expected values have the same id, metric and scenario to compare with")
        return self

    def variant(self, **fields: Any) -> Scenario:
        """The same scenario with some fields replaced."""
        return Scenario.model_validate({**{name: getattr(self, name) for name in type(self).model_fields}, **fields})

    @property
    def full_title(self) -> str:
        """The title with the model that runs: in the place of "{model}", or behind it where the model was changed."""
        if "{model}" not in self.title and "model" not in self.changes:
            return self.title
        model = self.transformer().name
        return self.title.replace("{model}", model) if "{model}" in self.title else f"{self.title}, {model}"

    @property
    def given(self) -> dict[str, str]:
        """Settings that were changed since it was loaded from its file."""
        return {key: text for key, text in self.changes.items() if self.file_changes.get(key) != text}

    def settings(self) -> dict[str, Any]:
        """Every key that `replace` takes, with its value."""
        return leaves(self)

    def replace(self, changes: Mapping[str, str]) -> Scenario:
        """The scenario with settings changed, from text; InputError says all that is wrong, and what is right."""
        machine = {key.partition(".")[2]: text for key, text in changes.items() if key.startswith("machine.")}
        model = {key.partition(".")[2]: text for key, text in changes.items() if key.startswith("model.")}
        own = {key: text for key, text in changes.items() if key.partition(".")[0] not in ("machine", "model")}
        files = {name: changes[name] for name in ("machine", "model") if name in changes}
        changed = self.variant(**files, machine_changes=self.machine_changes | machine,
                               model_changes=self.model_changes | model, changes=self.changes | dict(changes))
        mistakes = []
        try:
            changed = replaced(changed, own, changed.numbers)
        except InputError as error:
            mistakes.append(str(error))
        for check in (changed.machine_spec, changed.transformer):  # everything is refused here, before anything runs
            try:
                check()
            except InputError as error:
                mistakes.append(str(error))
        if mistakes:
            raise InputError("\n".join(mistakes))
        return changed

    def numbers(self) -> list[str]:
        """Every key of the machine or the model, as `replace` takes it; none if either file is wrong."""
        try:
            files = {"machine": load_machine(self.machine), "model": load_model(self.model)}
        except InputError:
            return []
        keys = [f"{file}.{key}" for file, spec in files.items() for key, _ in quantities(spec)]
        return [*keys, *(f"machine.{key}" for key in LINK_SETTINGS)]

    def machine_spec(self, reads: Reads | None = None) -> MachineSpec:
        """The machine's file with the changes of this scenario and the collectives of its generation."""
        spec = override(load_machine(self.machine), self.machine_changes)
        return (reads.machine(spec) if reads else spec).of_generation(self.kernels)

    @property
    def data_parallel(self) -> int:
        """Groups of ranks that have requests of their own."""
        return self.workload.data_parallel(self.case(self.machine_spec(), 0))

    def transformer(self) -> Model:
        """The model's layers with the changes of this scenario."""
        return transformer_of(override_model(load_model(self.model), self.model_changes))

    def shapes(self) -> ModelShapes:
        """The model's sizes with the changes of this scenario."""
        return shapes_of(override_model(load_model(self.model), self.model_changes))

    def case(self, machine: MachineSpec, seed: int, reads: Reads | None = None) -> Case:
        """What the workload's program gets to see; `reads` watches it."""
        reads = reads or Reads(())
        ranks = self.cards * machine.dies_per_card.count
        usable_bytes = machine.chip.hbm.capacity.si * machine.chip.hbm.usable.si
        parts = {name: reads.part(name, getattr(self, name)) for name in ("batch", "layout", "routing", "knobs")}
        return Case(lambda: reads.model(self.transformer()), lambda: reads.shapes(self.shapes()), self.cards, ranks,
                    **parts, seed=seed, usable_bytes=usable_bytes, kernels=self.kernels,
                    engines={name: machine.reach(name) for name in machine.collectives}, node_ranks=machine.node_dies,
                    port_ranks=machine.port_dies, dtypes=machine.chip.dtypes, machine=machine.name,
                    cores={pool: count.count for pool, count in machine.chip.cores.items()})
