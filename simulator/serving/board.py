"""What all groups of engines are like, in columns: what engines and routers look at, without asking every group."""

from __future__ import annotations

from simulator import np

COLUMNS = ("waiting", "running", "queued_tokens", "requests", "cached", "used", "blocks", "steps", "synced", "due",
           "begun")  # fmt: skip


class Board:
    """A column has an entry for each group; parts of a board are views of it.

    waiting, running: requests; requests: of these that decode. queued_tokens: of prompts that are not computed; begun:
    of those that are, and do not decode yet. pace: tokens that a group generates in a step. cached, used: tokens of
    those that decode, and blocks held, when the group was looked at after `synced` of the `steps` that its engine has
    done; due: steps after which it must be looked at (-1: none). blocks: of its cache, each of `block_tokens`.
    """

    def __init__(self, groups: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        (self.waiting, self.running, self.queued_tokens, self.requests, self.cached, self.used, self.blocks, self.steps,
         self.synced, self.due, self.begun) = np.zeros((len(COLUMNS), groups), np.int64)  # fmt: skip
        self.pace = np.zeros(groups)

    def part(self, first: int, last: int) -> Board:
        """The groups from the first to before the last."""
        found = Board(0, self.block_tokens)
        for name in (*COLUMNS, "pace"):
            setattr(found, name, getattr(self, name)[first:last])
        return found

    def grown(self) -> np.Array:
        """Tokens that every group has generated since it was looked at."""
        return np.rint(self.pace * (self.steps - self.synced)).astype(np.int64)

    def cached_now(self) -> np.Array:
        """Tokens cached of those that decode."""
        return self.cached + self.grown()

    def used_now(self) -> np.Array:
        """Blocks held; those of groups that only decode are counted as if they grew evenly."""
        return self.used + self.grown() // self.block_tokens
