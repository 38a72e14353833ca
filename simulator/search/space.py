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
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import NamedTuple

from simulator.errors import InputError
from simulator.model.library import load_transformer
from simulator.model.transformer import Experts, Model, in_precision
from simulator.parallel.mesh import Mesh
from simulator.paths import did_you_mean
from simulator.search.deployment import Ask, Engine
from simulator.spec.load import load_machine
from simulator.spec.machine import MachineSpec
from simulator.stack.stacks import stack_of
from simulator.study.nearest import generations

Axes = Mapping[str, tuple[str, ...]]
MODES = ("together", "apart")
MESH = ("tp", "cp", "pp", "ep", "redundant", "replicas", "o_proj", "dense", "shared", "head", "embedding",
        "shared_places", "apart")
KEYS = {"exchange": "knobs.exchange", "schedule": "knobs.schedule", "micro_batches": "knobs.micro_batches",
        "cores": "knobs.cores", "precision": "knobs.precision", "drafts": "batch.drafts",
        "residual": "knobs.residual"}  # fmt: skip
OWN = ("mode", "cards", "stack", "tokens")
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


def axes_of(ask: Ask, changes: Axes) -> dict[str, tuple[str, ...]]:
    """The default ones, and those that are changed; InputError for a name that is none."""
    machine, model = load_machine(ask.machine), load_transformer(ask.model)
    stacks = tuple(one for one in generations(machine) if one in machine.kernels)
    found = {"mode": MODES, "cards": _sizes(ask, machine), "stack": stacks,
             "tp": _powers(ask.most_gpus * machine.dies_per_card.count), "pp": ("1", "2"),
             **({"ep": ("1", "all"), "redundant": ("0",)} if experts_of(model) else {}),
             "exchange": ("",), "schedule": ("",), "tokens": TOKENS}  # fmt: skip
    if ask.acceptance and model.drafts:
        found["drafts"] = ("0", "1", "2", "3")
    for name, values in changes.items():
        known = (*OWN, *MESH, *KEYS)
        if "." not in name and name not in known:
            raise InputError(f"{name} is no axis of a search{did_you_mean(name, known)}; axes are {', '.join(known)}, "
                             "or any setting of a step, as knobs.cores")
        if not values:
            raise InputError(f"{name}: give one value or more, as {name}=1,2")
        found[name] = values
    return found


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
    machine, refused = load_machine(ask.machine), Counter[str]()
    names = [name for name in axes if name not in ("mode", "tokens")]
    tokens = tuple(sorted(map(int, axes["tokens"])))
    found: dict[tuple[Engine, ...], tuple[str, ...]] = {}
    for values in product(*(axes[name] for name in names)):
        one = dict(zip(names, values, strict=True))
        mesh = _mesh(one, machine, refused)
        if mesh is None or not _is_usual(one, mesh, machine, given, refused):
            continue
        for engine, roles in _offered(one, mesh, given, _roles(ask, one, axes["mode"])):
            found.setdefault(tuple(engine._replace(tokens=most) for most in tokens), roles)
    if not found:
        raise InputError(f"there is nothing to search: {_words(refused) or 'no axis has a value'}")
    return Space(tuple(Family(*one) for one in found.items()), refused)


def _words(refused: Mapping[str, int]) -> str:
    return "; ".join(f"{count} layouts: {reason}" for reason, count in refused.items())


def _mesh(one: Mapping[str, str], machine: MachineSpec, refused: Counter[str]) -> Mesh | None:
    """With as many data-parallel groups as the cards of an engine leave; None, and why, where they leave none."""
    ranks = int(one["cards"]) * machine.dies_per_card.count
    axes = {name: one[name] for name in MESH if name in one}
    inside = int(axes.get("tp", 1)) * int(axes.get("cp", 1)) * int(axes.get("pp", 1))
    stage = ranks // int(axes.get("pp", 1)) - int(axes.get("apart", 0))
    if inside > ranks or stage % (int(axes.get("tp", 1)) * int(axes.get("cp", 1))):
        refused["tp x cp x pp do not divide the ranks of an engine"] += 1
        return None
    dp = stage // (int(axes.get("tp", 1)) * int(axes.get("cp", 1)))
    if axes.get("ep") == "all":
        if stage == 1:
            refused["experts on one rank are not spread"] += 1
            return None
        axes["ep"] = str(stage)
    return Mesh.model_validate({**axes, "dp": str(dp)})


def _is_usual(one: Mapping[str, str], mesh: Mesh, machine: MachineSpec, given: Axes, refused: Counter[str]) -> bool:
    """Whether a mesh is one that is deployed; those of axes that a user named are."""
    if mesh.dp > 1 and "ep" not in one:
        refused["data-parallel groups of a model without experts are engines of their own"] += 1
    elif mesh.dp > 1 and mesh.tp > 1 and one["stack"].startswith("trtllm"):
        refused["TensorRT-LLM has attention data parallel over all ranks, or not at all"] += 1
    elif mesh.pp > 1 and "pp" not in given and (mesh.dp > 1 or mesh.stage < machine.node_dies):
        refused["stages of a pipeline are whole nodes, tensor parallel, unless pp is named"] += 1
    else:
        return True
    return False


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


def _offered(one: Mapping[str, str], mesh: Mesh, given: Axes, there: tuple[str, ...]
             ) -> Iterator[tuple[Engine, tuple[str, ...]]]:  # fmt: skip
    """Engines with this mesh, in the exchanges and schedules that there are for it, and what they may be."""
    ways = _ways(one["stack"], mesh) if "ep" in one else {"": ("",)}
    others = tuple((KEYS.get(name, name), value) for name, value in one.items()
                   if name not in (*OWN, *MESH, "exchange", "schedule") and value not in ("", "0"))  # fmt: skip
    for exchange in given.get("exchange", tuple(ways)):
        for schedule in given.get("schedule", ways.get(exchange, ("",))):
            own = {"knobs.exchange": exchange, "knobs.schedule": schedule}
            settings = tuple(sorted([*((key, value) for key, value in own.items() if value), *others]))
            if roles := _with_exchange(exchange, there):
                yield Engine(one["stack"], mesh.words(), settings), roles


def _ways(stack: str, mesh: Mesh) -> Mapping[str, tuple[str, ...]]:
    """Exchanges and their schedules that the framework of a stack has for a mesh; vLLM's for one that is unknown."""
    if mesh.dp == 1 and not mesh.apart:
        return {"": ("",)}
    ways = WAYS[next((name for name in WAYS if stack.startswith(name)), "vllm")]
    return ways if mesh.ep > 1 else {"all_gather": ("",)}


def _with_exchange(exchange: str, roles: tuple[str, ...]) -> tuple[str, ...]:
    """DeepEP's kernels for few tokens are of engines that decode and nothing else, its others of those that prefill:
    the first have buffers for few tokens of a rank, the others are in no captured graph."""
    if exchange in DECODE_ONLY:
        return tuple(role for role in roles if role == "decode")
    return tuple(role for role in roles if role == "prefill") if exchange in PREFILL_ONLY else roles
