"""Keys and values below HBM: in the memory of an engine's own host, and in a pool that all engines share.

A prompt whose blocks lie there holds its place in HBM, waits until they have come, and is computed from there on; they
are always loaded, never computed again instead. So do vLLM's OffloadingConnector and MooncakeStoreConnector
(vllm/distributed/kv_transfer/kv_connector/v1); SGLang's HiCache, which loads layer by layer under the prefill, would
hide a part of it. The first blocks are looked for in HBM, those after them in the host, those after these in the pool.
What is written:

* write_through (vLLM, SGLang): whole blocks of a prompt that are not there yet, once it is computed.
* write_back (the host alone; TensorRT-LLM's secondary blocks): what HBM evicts; what is loaded again leaves the host.

All bytes are flows over the links of dies to hosts, the memory of these, and the fabric to that of others. Every rank
of a group writes what it holds of a token, also where ranks hold the same, and reads what it needs of one that was
computed before: the same but where ranks keep parts and need all. A pool's blocks lie on all its hosts alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from simulator import np
from simulator.errors import InputError
from simulator.np import Array
from simulator.physics.clock import call_later
from simulator.serving.build import Kind, bytes_of_reused
from simulator.serving.cache import BlockCache, sizes
from simulator.serving.engine import Engine
from simulator.serving.group import Run
from simulator.serving.links import Cargo, Links, memory_of
from simulator.serving.record import NEVER, Lower
from simulator.serving.sequences import Sequence
from simulator.serving.settings import Service
from simulator.serving.store import Store
from simulator.units import to_ps

GIB = 2**30
KEYS = {"host": "cache.kv_offloading_gib", "pool": "pool.size_gib"}
COUNTED = ("room", "read", "written", "evicted")


class Tiers:
    """All that lies below HBM in one run of a service, and what requests found there. admitted: when each request was
    first scheduled, as far as it was; hash_tokens: of the hashes of prompts.

    InputError as of `memory_of`, `Links.fabric` and `sizes`, or where a tier has no room for one block."""

    def __init__(self, service: Service, kind: Kind, links: Links, admitted: Array, hash_tokens: int) -> None:
        self._kind, self.links, self._admitted = kind, links, admitted
        cache = kind.settings.cache
        asked_gib = {"host": cache.kv_offloading_gib, "pool": service.pool.size_gib}
        self._sizes_gib = {name: size for name, size in asked_gib.items() if size}
        self._exclusive = cache.write_policy == "write_back"
        self.stores: dict[str, list[Store]] = {name: [] for name in self._sizes_gib}
        self.load_ps = np.zeros(len(admitted), np.int64)
        self.tokens = {name: np.zeros(len(admitted), np.int64) for name in self._sizes_gib}
        if self._sizes_gib:
            memory_of(kind.settings.step.machine_spec())
            blocks, self.every = sizes(cache.block_size, hash_tokens or cache.block_size)
            self.unit = blocks * cache.block_size
            self._reused_bytes = bytes_of_reused(kind.settings)
        if "pool" in self._sizes_gib:
            self._check_fabric()

    def _check_fabric(self) -> None:
        """A pool is on the hosts of all engines."""
        try:
            _ = self.links.fabric
        except InputError as error:
            raise InputError(f"{error}: pool.hosts must be on the fabric that joins all engines, else pool.size_gib "
                             "must be 0") from None

    def attach(self, number: int, engine: Engine) -> None:
        """Every group of an engine that looks up prompts has what lies below its HBM."""
        for place, group in enumerate(engine.groups if self._sizes_gib else ()):
            stores = {name: self._store(name) for name in self._sizes_gib}
            group.below = Below(self, (number, place), group.cache, stores, partial(engine.loaded, place))

    def _store(self, name: str) -> Store:
        """A host's share of a group is its own; the pool is one."""
        made = self.stores[name]
        if name == "pool" and made:
            return made[0]
        each = self.unit * self._kind.token_bytes * self._kind.ranks / self._kind.groups
        room = int(self._sizes_gib[name] * GIB // each)
        if not room:
            raise InputError(f"{KEYS[name]} is {self._sizes_gib[name]:g}; a block of {self.unit} tokens has "
                             f"{each / GIB:.3g} GiB on the ranks of a group: it must be at least as much, or 0")
        made.append(Store(room, self._exclusive and name == "host"))
        return made[-1]

    def move(self, place: tuple[int, int], tier: str, hashes: int, inward: bool, done: Callable[[], None]) -> None:
        """So many hashes to a group (inward) from a tier, or there; done: called at the end."""
        loads, latency_s = self.links.to_hosts(*place, tier == "pool", inward)
        size = hashes * self.unit * (self._reused_bytes if inward else self._kind.token_bytes)
        self.links.start(Cargo(size, loads, inf, lambda _: done(), to_ps(latency_s)))

    def count(self, request: int, runs: list[Run]) -> None:
        """What a request found, the first time that it was looked up."""
        if self._admitted[request] == NEVER:
            for run in runs:
                self.tokens[run.tier][request] = len(run.chain) * self.unit

    def record(self) -> Lower | None:
        """What requests found and waited for; None where nothing is below HBM."""
        if not self._sizes_gib:
            return None
        about = {name: {"size_gib": float(size) * len(self.stores[name])} | {
                     f"{what}_tokens": sum(getattr(store, what) for store in self.stores[name]) * self.unit
                     for what in COUNTED} for name, size in self._sizes_gib.items()}  # fmt: skip
        return Lower(self.load_ps, self.tokens, about)


class Below:
    """Of one group. place: number of the engine, of the group; loaded: called with a request whose blocks have come."""

    def __init__(self, tiers: Tiers, place: tuple[int, int], cache: BlockCache, stores: dict[str, Store],
                 loaded: Callable[[Sequence], None]) -> None:  # fmt: skip
        self._tiers, self._place, self._cache, self._stores, self._loaded = tiers, place, cache, stores, loaded
        self._unit, self._unit_blocks = tiers.unit, tiers.unit // cache.block_tokens
        self._evicted: list[int] = []  # from HBM in this instant
        if "host" in stores and stores["host"].exclusive:
            cache.evicting = self._evict

    def found(self, one: Sequence) -> list[Run]:
        """Where the blocks of a prompt lie that come after those in HBM; a token of it is always computed."""
        at, chain, runs = self._in_hbm(one), self._chain(one, one.prompt - 1), list[Run]()
        for tier, store in self._stores.items():
            if more := store.leading(chain[at:]):
                runs.append(Run(tier, chain[at : at + more]))
                at += more
        return runs

    def load(self, one: Sequence, runs: list[Run], spare: int, whole: int) -> tuple[int, int] | None:
        """A prompt's blocks are held in HBM, if so many others stay free, and those that it lacks to `whole`, and what
        was found begins to come: tokens that are there then, and blocks. None, and nothing changed, without room."""
        cache, hashes = self._cache, self._in_hbm(one) + sum(len(run.chain) for run in runs)
        blocks = hashes * self._unit_blocks
        if not cache.has_room(one.hashes, blocks, spare + max(whole - blocks, 0)):
            return None
        for run in runs:
            self._stores[run.tier].hold(run.chain)
        cache.hold(one.request, one.hashes, blocks)
        self._tiers.count(one.request, runs)
        since_ps, left = self._tiers.links.clock.now_ps, list(runs)

        def come(run: Run) -> None:
            self._stores[run.tier].let_go(run.chain)
            left.remove(run)
            if not left:
                self._all_there(one, since_ps)

        for run in runs:
            self._tiers.move(self._place, run.tier, len(run.chain), True, partial(come, run))
        return hashes * self._unit, blocks

    def _in_hbm(self, one: Sequence) -> int:
        """Leading hashes of a prompt there."""
        return self._cache.hit_blocks(one.hashes) // self._unit_blocks

    def _chain(self, one: Sequence, tokens: int) -> list[int]:
        """The hashes of whole blocks of a prompt, as far as so many of its tokens."""
        every = self._tiers.every
        return one.hashes[every - 1 :: every][: min(tokens, one.input) // self._unit]

    def _all_there(self, one: Sequence, since_ps: int) -> None:
        if one.gone:
            return
        self._cache.came(one.request)
        if not one.preempted:  # else it is a part of that wait
            self._tiers.load_ps[one.request] += self._tiers.links.clock.now_ps - since_ps
        self._loaded(one)

    def keep(self, one: Sequence) -> None:
        """A prompt is computed: its whole blocks are written through."""
        chain = self._chain(one, one.input)
        for tier, store in self._stores.items():
            if not store.exclusive and (new := store.put(chain)):
                self._tiers.move(self._place, tier, len(new), False, partial(store.came, new[::-1]))

    def forget(self) -> None:
        """What is in the memory of the engine's own host is gone."""
        if "host" in self._stores:
            self._stores["host"].forget()

    def _evict(self, one: int) -> None:
        """A hash goes from HBM: written back with all that go in this instant."""
        if not self._evicted:
            call_later(self._tiers.links.clock, 0, lambda _: self._write_back())
        self._evicted += self._stores["host"].put([one])

    def _write_back(self) -> None:
        gone, self._evicted = self._evicted, []
        if gone:
            self._tiers.move(self._place, "host", len(gone), False, partial(self._stores["host"].came, gone))
