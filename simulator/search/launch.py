"""What the command that launches engines needs to know of them, in the words of a step; and how commands are written.

A framework's file gives flags, and `lack` where it has none for a word; `written` puts both on lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple, cast

from simulator.model.library import load_transformer
from simulator.model.transformer import Dense, Experts, Model, in_precision
from simulator.parallel.mesh import PLACED, Mesh
from simulator.paths import own_path
from simulator.search.deployment import Ask, Engine, Found
from simulator.search.engine import words_of
from simulator.spec.model import load_model
from simulator.study.step import step_of

LACK = "# not expressible: "
WIDTH = 110  # columns of a line of a command
SERVER_CARDS = 8  # that one operating system has at most, in the machines of the library
LOAD = ("batch.", "routing.", "layout.")  # settings that say what is served, or that the mesh has
KNOWN = ("knobs.exchange", "knobs.schedule", "knobs.precision")  # settings that every framework's file looks at


class Launch(NamedTuple):
    """Engines that are alike. model: as Hugging Face or a path names it; role: "both", "prefill" or "decode";
    instances: how many; requests: of a data-parallel group in flight (0: not said); tokens: of a group in one step;
    drafts: of a request; node_cards: cards that one command reaches; checkpoint, wanted: precisions of modules; others:
    settings that no framework has a word for, (key, text); input_tokens: of a request."""

    model: str
    architecture: Model
    role: str
    instances: int
    mesh: Mesh
    exchange: str
    schedule: str
    drafts: int
    requests: int
    tokens: int
    node_cards: int
    dies_per_card: int
    checkpoint: Mapping[str, str | None]
    wanted: Mapping[str, str | None]
    others: tuple[tuple[str, str], ...]
    input_tokens: int

    @property
    def cards(self) -> int:
        """Of one engine."""
        return self.mesh.ranks // self.dies_per_card

    @property
    def nodes(self) -> int:
        """That one engine is on."""
        return -(-self.cards // self.node_cards)

    @property
    def decoding(self) -> int:
        """Tokens of a group in a step that decodes."""
        return self.requests * (1 + self.drafts)

    @property
    def experts(self) -> Experts | None:
        """Of a layer that has them."""
        found = (one.feed_forward for one in self.architecture.layers if isinstance(one.feed_forward, Experts))
        return next(found, None)

    @property
    def some_dense(self) -> bool:
        """Whether layers without experts are among those with them."""
        return self.experts is not None and any(isinstance(one.feed_forward, Dense) for one in self.architecture.layers)

    @property
    def slots(self) -> int:
        """Of experts, over all places, copies included (0: there are no copies)."""
        if self.experts is None or not self.mesh.redundant:
            return 0
        places = self.mesh.routed_places
        return places * (-(-self.experts.routed // places) + self.mesh.redundant)


def launches(found: Found, ask: Ask) -> list[Launch]:
    """Those of a deployment, the ones that prefill first. InputError: it is none that a step can have."""
    engines, before = found.deployment.engines, found.deployment.prefill
    if before is None:
        return [_launch(engines, ask, "both", found.count, found.requests)]
    return [_launch(before, ask, "prefill", found.prefill_count, 0),
            _launch(engines, ask, "decode", found.count, found.requests)]


def _launch(engine: Engine, ask: Ask, role: str, count: int, requests: int) -> Launch:
    phase = "prefill" if role == "prefill" else "decode"
    scenario = step_of(replace(words_of(ask, engine), phase=phase))
    layout, knobs, batch = (cast(Any, one) for one in (scenario.layout, scenario.knobs, scenario.batch))
    machine = scenario.machine_spec()
    model = in_precision(scenario.transformer(), knobs.precision, "knobs.precision")
    dies = machine.dies_per_card.count
    others = tuple((key, text) for key, text in engine.settings if not key.startswith(LOAD) and key not in KNOWN)
    return Launch(named(ask.model), model, role, count, layout, knobs.exchange, knobs.schedule, batch.drafts,
                  -(-requests // layout.dp), engine.tokens, max(machine.node_dies // dies, 1), dies,
                  asdict(load_transformer(ask.model).precision), asdict(model.precision), others, ask.input_tokens)


def named(model: str) -> str:
    """A model as Hugging Face has it, where a file of the library says from which page its shapes are; else the folder
    of its config.json."""
    path = own_path(model)
    if path.exists() and path.suffix != ".toml":
        return str(path.parent if path.is_file() else path)
    source = load_model(model).shapes.layers.source.split(",")[0]
    return source if source.count("/") == 1 and " " not in source else model


def lack(text: str) -> str:
    """A line that says what a framework has no word for."""
    return f"{LACK}{text}"


def common_lacks(launch: Launch, known: Iterable[str]) -> Iterator[str]:
    """Axes of the mesh beside `known` ones, and settings, that say something else than frameworks do by themselves."""
    mesh = launch.mesh
    for name, field in Mesh.model_fields.items():
        value = getattr(mesh, name)
        if name not in known and value != (mesh.tensor if name in PLACED and value is not None else field.default):
            yield lack(f"{name}={value} of the mesh")
    yield from (lack(f"{key}={text}") for key, text in launch.others)


def precisions(launch: Launch, cache: Mapping[str, str], weights: Mapping[str, str]) -> Iterator[str]:
    """Flags of the KV cache, and of weights that are quantised as they are loaded, by data type; what the checkpoint
    has needs none. Kernels that multiply the same weights in several ways are chosen by the framework."""
    changed = {name: str(dtype) for name, dtype in launch.wanted.items()
               if not _same(dtype, launch.checkpoint[name]) and _there(launch, name)}
    kv = changed.pop("kv", None)
    if kv is not None:
        yield cache.get(kv) or lack(f"a KV cache in {kv}")
    inside = {name for name in ("attention", "dense", "experts", "shared", "drafts") if _there(launch, name)}
    dtypes = {changed[name] for name in inside if name in changed}
    if len(dtypes) == 1 and inside <= changed.keys() and {launch.checkpoint[name] for name in inside} == {"bf16"}:
        (dtype,) = dtypes
        if dtype in weights:
            yield weights[dtype]
            changed = {name: dtype for name, dtype in changed.items() if name not in inside}
    for dtype in dict.fromkeys(changed.values()):
        names = ", ".join(name for name, its in changed.items() if its == dtype)
        yield lack(f"{names} in {dtype} without a checkpoint that was quantised so")


def _same(one: str | None, other: str | None) -> bool:
    """Whether weights are stored alike."""
    return one == other or (str(one).startswith("mxfp4") and str(other).startswith("mxfp4"))


def _there(launch: Launch, name: str) -> bool:
    """Whether a model has a module."""
    model, experts = launch.architecture, launch.experts
    return {"experts": experts is not None, "shared": experts is not None and experts.shared_intermediate > 0,
            "dense": any(isinstance(one.feed_forward, Dense) for one in model.layers),
            "drafts": bool(model.drafts)}.get(name, True)  # fmt: skip


def told(parts: Iterable[str]) -> tuple[list[str], list[str]]:
    """(flags, lines that say what there are none for) of what a framework's file gives."""
    flags: list[str] = []
    lacks: list[str] = []
    for part in parts:
        (lacks if part.startswith("#") else flags).append(part)
    return flags, lacks


def wrapped(parts: Iterable[str]) -> list[str]:
    """A command on lines that a shell reads as one; no part is broken."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


def heading(launch: Launch) -> str:
    """A comment above the command of engines: what they do and how many there are."""
    what = {"both": "prefill and decode", "prefill": "prefill", "decode": "decode"}[launch.role]
    nodes = f", each over {launch.nodes} nodes" if launch.nodes > 1 else ""
    many = "engines" if launch.instances > 1 else "engine"
    if launch.nodes == 1 and launch.cards > SERVER_CARDS:
        nodes = f", in a node of {launch.node_cards}: where a server has fewer, launch it as over nodes"
    return f"# {what}: {launch.instances} {many} of {launch.cards} GPUs{nodes}"


def hosts(launch: Launch) -> list[str]:
    """Shell variables for the hosts of all engines, where each is reached."""
    name = "ENGINE" if launch.role == "both" else launch.role.upper()
    return [f"${name}_{number}" for number in range(launch.instances)]
