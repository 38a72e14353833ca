"""How many copies of a rank's tokens go to nodes and to GPUs where one copy serves all experts there, by expectation.

Where load is even every set of experts is as likely: a token misses a place with the probability that none of its
different experts is there. Where it is drawn, that is the product over the experts there, of which each is taken by as
many of the source's tokens as the draw says: a copy goes to nearly every token where one expert is hot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log, prod
from typing import Any, NamedTuple

from simulator import np
from simulator.errors import InputError
from simulator.model.transformer import Experts
from simulator.parallel.exchange.task import ExpertTask
from simulator.parallel.routed import Routed, Together


class Passed(NamedTuple):
    """Copies over the NVLink of a node. leaving, arriving: of this rank. table: of every pair; none: all are equal."""

    leaving: float
    arriving: float
    table: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Copies:
    """Of one rank with so many tokens, among `nodes` nodes, moved in so many chunks.

    leaving: to other nodes. own: of own tokens, to GPUs of its node; passed_on: of tokens that came from other nodes;
    inside: both. to_nodes: (place, tokens) to the GPU of its number in every other node; from_nodes: from there.
    summed: sums that it makes for all senders of its number, its own too; returning: that come for its own tokens.
    """

    tokens: int
    nodes: int
    chunks: int
    leaving: float
    own: Passed
    passed_on: Passed
    inside: Passed
    to_nodes: tuple[tuple[int, int], ...]
    from_nodes: tuple[tuple[int, int], ...]
    summed: float
    returning: float


def copies_of(routed: Routed | Together, task: ExpertTask, place: int, settings: Any) -> Copies:
    """Those of the rank at a place; settings: `chunk_tokens` and `nodes_per_token`."""
    node, places = min(task.settings.node, task.mesh.block), task.mesh.block
    chunks = ceil(max(task.own) / settings.chunk_tokens)
    if routed.even:
        return even_copies(task.experts, task.own[0], places, node, place, chunks, settings.nodes_per_token)
    if not isinstance(routed, Routed):
        raise InputError(f"exchange {task.settings.name} needs the draw of every source, not one for all together")
    return _drawn(routed, task.own, node, place, chunks)


def even_copies(experts: Experts, tokens: int, places: int, node: int, place: int, chunks: int,
                nodes_per_token: int) -> Copies:
    """Where all ranks have so many tokens, and every expert is as likely, within the nodes that a token may reach."""
    nodes, chosen = places // node, experts.per_token
    near = min(nodes_per_token or nodes_reached(experts, nodes), nodes)
    inside_near = experts.routed * near // nodes
    to_nodes, to_gpus = (_reached(count, inside_near, chosen) for count in (near, near * node))
    per_node, inside = tokens * to_nodes / nodes, tokens * to_gpus
    own = inside / nodes
    others = tuple(((place + far * node) % places, round(per_node)) for far in range(1, nodes))
    return Copies(tokens, nodes, chunks, per_node * (nodes - 1), Passed(own, own), Passed(inside - own, inside - own),
                  Passed(inside, inside), others, others, per_node * nodes, per_node * nodes)


def nodes_reached(experts: Experts, nodes: int) -> int:
    """On how many of so many nodes a token's groups of experts can be."""
    return experts.groups_per_token * ceil(nodes / experts.groups) if experts.groups else nodes


def _reached(places: int, experts: int, chosen: int) -> float:
    """How many of so many places, with as many of the experts each, have one of the different ones that are chosen."""
    missed = prod((experts - experts / places - one) / (experts - one) for one in range(chosen))
    return places * (1.0 - max(missed, 0.0))


def _drawn(routed: Routed, tokens: tuple[int, ...], node: int, place: int, chunks: int) -> Copies:
    to_gpu, to_node = _tables(routed, tokens, node)
    places, nodes, mine = len(tokens), len(tokens) // node, place // node
    here = slice(mine * node, mine * node + node)
    number = range(place % node, places, node)
    all_of = np.stack([to_gpu[gpu % node :: node, here].sum(axis=0) for gpu in range(here.start, here.stop)])
    own = to_gpu[here, here]

    def passed(table: np.ndarray) -> Passed:
        at = place % node
        return Passed(float(table[at].sum()), float(table[:, at].sum()), tuple(map(tuple, table.tolist())))

    others = [(one, one // node) for one in ((place + far * node) % places for far in range(1, nodes))]
    return Copies(
        tokens[place], nodes, chunks, float(to_node[place].sum() - to_node[place, mine]),
        passed(own), passed(all_of - own), passed(all_of),
        tuple((one, round(float(to_node[place, there]))) for one, there in others),
        tuple((one, round(float(to_node[one, mine]))) for one, _ in others),
        float(to_node[list(number), mine].sum()), float(to_node[place].sum()),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _tables(routed: Routed, tokens: tuple[int, ...], node: int) -> tuple[np.ndarray, np.ndarray]:
    """[source, GPU] and [source, node] copies, one computation for all who take part in one exchange."""
    whole = np.maximum(np.array(tokens, dtype=float), 1.0)[:, None]
    chosen, shares = routed.counts / whole, routed.shares
    of_nodes = shares.reshape(len(shares), -1, node).sum(axis=2)
    to_gpu, to_node = (whole * (1.0 - _missed(chosen, held, routed.experts)) for held in (shares, of_nodes))
    nothing = np.array(tokens)[:, None] == 0
    return np.where(nothing, 0.0, to_gpu), np.where(nothing, 0.0, to_node)


def _missed(chosen: np.ndarray, held: np.ndarray, experts: Experts) -> np.ndarray:
    """[source, place]: the probability that a token has none of its experts there.

    chosen: [source, expert], that a token of a source takes an expert; held: [expert, place], the share of its rows
    there. Tokens take experts by themselves, but for the number of those that they take: the power of the product is
    what makes it exact where all experts are as popular.
    """
    places, count = held.shape[1], experts.per_token
    missed = np.stack([np.prod(1.0 - np.minimum(chosen[:, mine] * held[mine, place], 1.0), axis=1)
                       for place, mine in enumerate(held.T > 0)], axis=1)  # fmt: skip
    even = 1.0 - _reached(places, experts.routed, count) / places
    alone = (1.0 - count / experts.routed) ** (experts.routed / places)
    return np.asarray(missed ** (log(even) / log(alone)) if 0.0 < even < 1.0 and places > 1 else missed)
