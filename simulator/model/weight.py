"""A tensor of a model, and how tensor parallelism cuts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Shard: TypeAlias = Literal["columns", "rows", "kv_heads", "experts", "vocabulary", ""]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of `copies` matrices of inputs x outputs; of a vector (norm, bias, sinks) `inputs` is 1.

    name: module and part ("attention.o"). Weights of one name and module lie side by side in one matrix, where tensor
    parallelism cuts each in its own way: "attention.qkv" has the queries and then the keys and values.
    shard: what tensor parallelism cuts. "columns": outputs; "rows": inputs; "kv_heads": copies, one for each head of
    keys and values, of which a rank has one at least; "experts": copies (expert parallelism), or columns and rows
    inside each; "vocabulary": rows of the embedding, columns of the head; "": nothing, every rank has it whole.
    """

    name: str
    inputs: int
    outputs: int
    copies: int = 1
    shard: Shard = ""

    @property
    def elements(self) -> int:
        """How many numbers it has, all copies together."""
        return self.inputs * self.outputs * self.copies
