"""Linear attention by the gated delta rule (Gated DeltaNet): a state of fixed size for each request.

Every value head keeps a matrix of key_dim x v_dim that a token decays, corrects and reads (Yang et al., "Gated Delta
Networks", ICLR 2025). Queries, keys and values pass a causal convolution over the last few tokens, and a gate of the
size of the values multiplies their norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.model.weight import Weight


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """heads: of values, each with a state; key_heads: of queries and of keys, each shared by as many value heads.

    key_dim, v_dim: sizes of a head of keys (and of queries) and of values. conv: tokens that the convolution sees.
    """

    heads: int
    key_heads: int
    key_dim: int
    v_dim: int
    conv: int

    @property
    def convolved(self) -> int:
        """Values of queries, keys and values of a token, which pass the convolution."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.v_dim

    @property
    def projected(self) -> int:
        """Those, and the gate."""
        return self.convolved + self.heads * self.v_dim

    @property
    def cached_values(self) -> int:
        """Values that the cache keeps per token: none."""
        return 0

    @property
    def state_values(self) -> int:
        """Values of a request's state, all heads together."""
        return self.heads * self.key_dim * self.v_dim

    @property
    def conv_values(self) -> int:
        """Values that the convolution keeps of a request's last tokens."""
        return self.convolved * (self.conv - 1)

    def on(self, shards: int) -> GatedDelta:
        """One rank's heads, of so many ranks that share them."""
        return replace(self, heads=self.heads // shards, key_heads=self.key_heads // shards)


def delta_weights(module: GatedDelta, hidden: int) -> tuple[Weight, ...]:
    """The weights of a module of a model with `hidden` values per token, as of `transformer.weights`."""
    return (Weight("attention.norm", 1, hidden),
            Weight("attention.qkvz", hidden, module.projected, shard="columns"),
            Weight("attention.ba", hidden, 2 * module.heads, shard="columns"),
            Weight("attention.conv", 1, module.convolved, module.conv, "columns"),
            Weight("attention.decay", 1, 2 * module.heads, shard="columns"),  # of its logarithm, and a bias
            Weight("attention.value_norm", 1, module.v_dim),
            Weight("attention.o", module.heads * module.v_dim, hidden, shard="rows"))
