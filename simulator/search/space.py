"""The layouts that are searched: axes with their values, from the model and the machine, and what cannot be.

An axis is a mesh axis (tp, cp, pp, ep, redundant, o_proj, dense, ...), or one of cards, stack, exchange, schedule,
micro_batches, cores, precision, drafts, tokens, mode; or any setting of a step by its whole key, or of engines that are
served (engines.cache.gpu_memory_utilization). dp follows: what the cards of an engine leave. "all" of ep is every rank
of a stage. By default axes have what the frameworks have: stacks
that the machine has kernels of, exchanges and schedules that the framework of a stack offers, experts whole or spread
over all ranks, two stages at most. Precision stays that of the checkpoint, since another one changes what the model
answers, and drafts are looked at where it is said how many are accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import NamedTuple

from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.transformer import Experts, Model, in_precision
from simulator.parallel.mesh import Mesh
from simulator.paths import did_you_mean
from simulator.search.deployment import Ask, Engine
from simulator.search.engine import OF_ENGINES
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.stack.stacks import stack_of
from simulator.study.library import load_scenario
from simulator.study.nearest import generations

Axes = Mapping[str, tuple[str, ...]]
MODES = ("together", "apart")
MESH = ("tp", "cp", "pp", "ep", "redundant", "replicas", "o_proj", "dense", "shared", "head", "embedding",
        "shared_places", "apart")
KEYS = {"exchange": "knobs.exchange", "schedule": "knobs.schedule", "micro_batches": "knobs.micro_batches",
        "cores": "knobs.cores", "precision": "knobs.precision", "drafts": "batch.drafts",
        "residual": "knobs.residual"}  # fmt: skip
OWN = ("mode", "cards", "stack", "tokens")
WAY = ("exchange", "schedule")
NOT_OFFERED = "the framework of the stack has no such exchange or schedule for the mesh"
WAYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # --all2all-backend of vllm/config/parallel.py; --enable-dbo, which asks for DeepEP (vllm/config/vllm.py)
    "vllm": {"all_gather": ("",), "deepep_ll": ("", "two_batches"), "deepep_normal": ("", "two_batches")},
    # --moe-a2a-backend, --enable-two-batch-overlap and --enable-single-batch-overlap of sglang/srt/server_args.py
    "sglang": {"all_gather": ("",), "deepep_ll": ("", "two_batches", "single_batch"),
               "deepep_normal": ("", "two_batches")},
    # AllGatherReduceScatter and NVLink All2All of tensorrt_llm/_torch/modules/fused_moe/communication
    "trtllm": {"all_gather": ("",), "all_to_all": ("",)},
    # AllGather with ReduceScatter, All2All, npu_moe_distribute_dispatch; schedules of Huawei's deployments
    "cann": dict.fromkeys(("all_gather", "all_to_all", "put_collect"), ("", "two_batches", "side_by_side")),
}  # fmt: skip
"""By framework, how tokens may reach experts on other ranks, and in which schedules."""
TOKENS = ("2048", "8192", "16384")
PHASES = {"together": "mixed", "decode": "decode", "prefill": "prefill"}
DECODE_ONLY, PREFILL_ONLY = ("deepep_ll",), ("deepep_normal",)


class Family(NamedTuple):
    """Engines that differ in tokens alone, and what they may be: of "together", "decode", "prefill"."""

    engines: tuple[Engine, ...]
    roles: tuple[str, ...]


class Space(NamedTuple):
    """Families of engines, and how many layouts were refused before anything was simulated, by reason."""

    families: tuple[Family, ...]
    refused: Mapping[str, int]

    @property
    def layouts(self) -> int:
        """All of them, with those that were refused."""
        return sum(len(one.engines) for one in self.families) + sum(self.refused.values())


def axes_of(ask: Ask, changes: Axes) -> dict[str, tuple[str, ...]]:
    """The default ones, and those that are changed; InputError for a stack or a setting that there is not."""
    machine, model = load_machine(ask.machine), load_transformer(ask.model)
    stacks = tuple(one for one in generations(machine) if one in machine.kernels)
    found = {"mode": MODES, "cards": _sizes(ask, machine), "stack": stacks,
             "tp": _powers(ask.most_gpus * machine.dies_per_card.count), "pp": ("1", "2"),
             **({"ep": ("1", "all"), "redundant": ("0",)} if experts_of(model) else {}),
             "exchange": ("",), "schedule": ("",), "tokens": TOKENS}  # fmt: skip
    if ask.acceptance and model.drafts:
        found["drafts"] = ("0", "1", "2", "3")
    if not found["stack"] and "stack" not in changes:
        raise InputError(f"--machine {ask.machine}: it has kernels of no stack; `braid machines` says which have some")
    for name in changes:
        _check(ask, machine, name, changes[name])
    if ask.acceptance and not model.drafts and "drafts" not in changes:
        raise InputError(f"--acceptance {ask.acceptance:g}: {ask.model} has no layers that draft (MTP); --fix drafts=1 "
                         "gives it one")
    return {**found, **changes}


def _check(ask: Ask, machine: MachineSpec, name: str, values: Iterable[str]) -> None:
    """InputError for values that no layout can have."""
    step, there = load_scenario("transformer:decode"), [*machine.kernels, *machine.generations]
    for value in values:
        if name == "stack" and not any(one.startswith(value) for one in there):
            raise InputError(f"stack={value}: {ask.machine} has no kernels of it{did_you_mean(value, there)}; it has "
                             f"{', '.join(there)}")
        if name == "drafts" and value != "0" and not ask.acceptance:
            raise InputError(f"drafts={value}: --acceptance P says how many of them are accepted")
        if name in KEYS or ("." in name and not name.startswith(OF_ENGINES)):
            try:
                step.replace({"model": ask.model, "machine": ask.machine, KEYS.get(name, name): value})
            except InputError as error:
                raise InputError(f"{name}={value}: {str(error).removeprefix('--set ')}") from None


def experts_of(model: Model) -> Experts | None:
    """Of the first layer that has some."""
    return next((one.feed_forward for one in model.layers if isinstance(one.feed_forward, Experts)), None)


def _sizes(ask: Ask, machine: MachineSpec) -> tuple[str, ...]:
    """Cards of an engine: powers of two, and all that there are."""
    most = min(ask.most_gpus, machine.dies // machine.dies_per_card.count)
    return tuple(dict.fromkeys((*_powers(most), str(most))))


def _powers(most: int) -> tuple[str, ...]:
    return tuple(str(1 << power) for power in range(most.bit_length()))


def space_of(ask: Ask, axes: Axes, given: Axes) -> Space:
    """All combinations of the axes that can be told apart. given: axes that a user named, which are taken as they are,
    whatever the framework of a stack offers."""
    refused = Counter[str]()
    families = tuple(Grid(ask, axes, given).families(refused))
    if not families:
        raise InputError(f"there is nothing to search: {_words(refused) or 'no axis has a value'}")
    return Space(families, refused)


class Grid(NamedTuple):
    """All combinations of axes for what is asked. given: axes that a user named."""

    ask: Ask
    axes: Axes
    given: Axes

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the engines of each family."""
        return tuple(sorted(map(int, self.axes["tokens"])))

    def families(self, refused: Counter[str]) -> Iterator[Family]:
        """Each once; refused: told how many combinations cannot be, by reason."""
        machine, found = load_machine(self.ask.machine), set[Family]()
        names = [name for name in self.axes if name not in ("mode", "tokens", *WAY)]
        for values in product(*(self.axes[name] for name in names)):
            one = dict(zip(names, values, strict=True))
            mesh = self._mesh(one, machine)
            if isinstance(mesh, str):
                refused[mesh] += len(self.tokens)
                continue
            for exchange, schedule in self._offered(one, mesh):
                family = self._family(one, mesh, exchange, schedule)
                if family is not None and family not in found:
                    found.add(family)
                    yield family

    def choices(self) -> dict[str, tuple[str, ...]]:
        """Values of which one of each makes a family, or what cannot be."""
        found = {name: values for name, values in self.axes.items() if name not in ("mode", "tokens", *WAY)}
        ways = [way for stack in self.axes["stack"] for way in _framework(stack).items()] if "ep" in found else []
        exchanges = dict.fromkeys(["", *(exchange for exchange, _ in ways)])
        schedules = dict.fromkeys(["", *(schedule for _, some in ways for schedule in some)])
        return found | {"exchange": self.given.get("exchange", tuple(exchanges)),
                        "schedule": self.given.get("schedule", tuple(schedules))}  # fmt: skip

    def family(self, choice: Mapping[str, str]) -> Family | str:
        """The one of these values, or why it cannot be."""
        mesh = self._mesh(choice, load_machine(self.ask.machine))
        if isinstance(mesh, str):
            return mesh
        way = choice["exchange"], choice["schedule"]
        if way not in self._offered(choice, mesh):
            return NOT_OFFERED
        return self._family(choice, mesh, *way) or NOT_OFFERED

    def _mesh(self, one: Mapping[str, str], machine: MachineSpec) -> Mesh | str:
        mesh = _mesh(one, self.ask.most_gpus, machine)
        return mesh if isinstance(mesh, str) else _unusual(one, mesh, machine, self.given) or mesh

    def _offered(self, one: Mapping[str, str], mesh: Mesh) -> Iterator[tuple[str, str]]:
        """Exchanges and schedules that there are for a mesh."""
        ways = _ways(one["stack"], mesh) if "ep" in one else {"": ("",)}
        for exchange in self.given.get("exchange", tuple(ways)):
            for schedule in self.given.get("schedule", ways.get(exchange, ("",))):
                yield exchange, schedule

    def _family(self, one: Mapping[str, str], mesh: Mesh, exchange: str, schedule: str) -> Family | None:
        """None where these engines can be nothing that is looked for."""
        others = ((KEYS.get(name, name), value) for name, value in one.items()
                  if name not in (*OWN, *MESH, *WAY) and value not in ("", "0"))  # fmt: skip
        own = (("knobs.exchange", exchange), ("knobs.schedule", schedule))
        engine = Engine(one["stack"], mesh.words(), tuple(sorted([*(way for way in own if way[1]), *others])))
        roles = _with_exchange(exchange, _roles(self.ask, one, self.axes["mode"]))
        return Family(tuple(engine._replace(tokens=most) for most in self.tokens), roles) if roles else None


def _words(refused: Mapping[str, int]) -> str:
    return "; ".join(f"{counted(count)}: {reason}" for reason, count in refused.items())


def counted(layouts: int) -> str:
    """In words."""
    return f"{layouts:,} layout{'' if layouts == 1 else 's'}"


def _mesh(one: Mapping[str, str], most_gpus: int, machine: MachineSpec) -> Mesh | str:
    """With as many data-parallel groups as the cards of an engine leave, or why they leave none."""
    ranks = int(one["cards"]) * machine.dies_per_card.count
    axes = {name: one[name] for name in MESH if one.get(name)}
    if int(one["cards"]) > most_gpus:
        return "an engine has more cards than there are GPUs"
    tensor, stages = int(axes.get("tp", 1)) * int(axes.get("cp", 1)), int(axes.get("pp", 1))
    stage = ranks // stages - int(axes.get("apart", 0))
    if stage < 1 or ranks % stages or stage % tensor:
        return "tp x cp x pp do not divide the ranks of an engine"
    dp = stage // tensor
    if axes.get("ep") == "all":
        if stage == 1:
            return "experts on one rank are not spread"
        axes["ep"] = axes["apart"] if int(axes.get("apart", 0)) else str(stage)
    return Mesh.model_validate({**axes, "dp": str(dp)})


def _unusual(one: Mapping[str, str], mesh: Mesh, machine: MachineSpec, given: Axes) -> str:
    """Why a mesh is none that is deployed; "" of one that is, and of axes that a user named."""
    if mesh.dp > 1 and "ep" not in one:
        return "data-parallel groups of a model without experts are engines of their own"
    if mesh.dp > 1 and mesh.tp > 1 and one["stack"].startswith("trtllm"):
        return "TensorRT-LLM has attention data parallel over all ranks, or not at all"
    if mesh.pp > 1 and "pp" not in given and (mesh.dp > 1 or mesh.stage < machine.node_dies):
        return "stages of a pipeline are whole nodes, tensor parallel, unless pp is named"
    return ""


def _roles(ask: Ask, one: Mapping[str, str], modes: tuple[str, ...]) -> tuple[str, ...]:
    """What engines may be, of what a stack has kernels for; all where it has none, and why is said later."""
    found = (*(("together",) if "together" in modes else ()), *(("decode", "prefill") if "apart" in modes else ()))
    return tuple(role for role in found
                 if _runs(ask.model, ask.machine, one["stack"], one.get("precision", ""), PHASES[role])) or found


@cache
def _runs(model: str, machine: str, stack: str, precision: str, phase: str) -> bool:
    words = tuple(filter(None, precision.split(",")))
    try:
        stack_of(stack, in_precision(load_transformer(model), words, "precision"), phase,
                 load_machine(machine).chip.dtypes)
    except InputError:
        return False
    return True


def _ways(stack: str, mesh: Mesh) -> Mapping[str, tuple[str, ...]]:
    """Exchanges and their schedules that the framework of a stack has for a mesh; vLLM's for one that is unknown."""
    if mesh.dp == 1 and not mesh.apart:
        return {"": ("",)}
    return _framework(stack) if mesh.ep > 1 else {"all_gather": ("",)}


def _framework(stack: str) -> Mapping[str, tuple[str, ...]]:
    return WAYS[next((name for name in WAYS if stack.startswith(name)), "vllm")]


def _with_exchange(exchange: str, roles: tuple[str, ...]) -> tuple[str, ...]:
    """DeepEP's kernels for few tokens are of engines that decode and nothing else, its others of those that prefill:
    the first have buffers for few tokens of a rank, the others are in no captured graph."""
    if exchange in DECODE_ONLY:
        return tuple(role for role in roles if role == "decode")
    return tuple(role for role in roles if role == "prefill") if exchange in PREFILL_ONLY else roles
