"""A kernel that a device is asked to run: a family and its sizes, what it moves, and the same kernel as a `Work`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.die.kernels import ELEMENT_BYTES, Work
from simulator.errors import InputError
from simulator.model import library_kernels, ops

SIZES = {
    "gemm_bf16":            ("m", "n", "k"),
    "gemm_fp8":             ("m", "n", "k"),
    "context_attention":    ("batch", "tokens", "heads", "kv_heads", "head_dim"),
    "generation_attention": ("batch", "keys", "heads", "kv_heads", "head_dim"),
    "elementwise":          ("buffer_bytes",),
    "device_copy":          ("buffer_bytes",),
    "copy_loop":            ("buffer_bytes", "blocks", "rounds"),
}  # fmt: skip
"""By family, the names of a kernel's sizes.

gemm: [m, k] x [k, n], weights as [n, k], BF16 out. context_attention: causal, of `batch` prompts of `tokens`.
generation_attention: of one query token of `batch` requests with `keys` cached tokens each. elementwise: a constant
added to a buffer of FP32, written to another. device_copy: the driver's copy between two buffers. copy_loop: `blocks`
thread blocks, an SM each, that copy a buffer `rounds` times, as the kernels of collectives do.
"""
BF16 = 2.0


@dataclass(frozen=True)
class Kernel:
    """A family of `SIZES` with a value for each of its sizes."""

    family: str
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.family not in SIZES or len(self.sizes) != len(SIZES[self.family]) or min(self.sizes) < 1:
            raise InputError(f"kernel {self.family} {self.sizes}: families and their sizes are {SIZES}")

    def __getitem__(self, name: str) -> int:
        """One of its sizes by name."""
        return self.sizes[SIZES[self.family].index(name)]

    def __str__(self) -> str:
        return f"{self.family} " + " ".join(f"{name} {_short(name, size)}"
                                            for name, size in zip(SIZES[self.family], self.sizes, strict=True))

    def as_object(self) -> dict[str, Any]:
        """As it stands in probe.json."""
        return {"family": self.family, **dict(zip(SIZES[self.family], self.sizes, strict=True))}

    @staticmethod
    def of(given: Mapping[str, Any]) -> Kernel:
        """From probe.json; InputError for what is no kernel."""
        family = str(given.get("family"))
        try:
            return Kernel(family, tuple(int(given[name]) for name in SIZES[family]))
        except (KeyError, TypeError, ValueError) as error:
            sizes = SIZES.get(family)
            raise InputError(f"kernel {dict(given)}: {error} is missing or wrong; sizes are {sizes}") from None

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return self.family.startswith("gemm_")

    @property
    def is_attention(self) -> bool:
        """Whether it is attention."""
        return self.family.endswith("_attention")

    @property
    def dtype(self) -> str:
        """Of its arithmetic."""
        return self.family.removeprefix("gemm_") if self.is_product else "bf16"

    @property
    def operand_bytes(self) -> float:
        """Of all buffers that one launch touches."""
        if self.is_product:
            element, m, n, k = ELEMENT_BYTES[self.dtype], *self.sizes
            return element * (m * k + n * k) + BF16 * m * n
        if self.is_attention:
            batch, tokens, heads, kv_heads, head_dim = self.sizes
            queries = tokens if self.family == "context_attention" else 1
            return 2.0 * BF16 * batch * head_dim * (queries * heads + tokens * kv_heads)
        return 2.0 * self["buffer_bytes"]

    @property
    def moved_bytes(self) -> float:
        """Through the memory system at least: every operand once, of a loop in every round."""
        return self.operand_bytes * (self["rounds"] if self.family == "copy_loop" else 1)

    def hbm_bytes(self, l2_bytes: float) -> float:
        """From and to HBM: everything, but for loops over buffers that stay in L2 from one launch to the next."""
        stays = self.family == "copy_loop" and self["rounds"] > 1 and self.operand_bytes <= l2_bytes / 2.0
        return 0.0 if stays else self.moved_bytes

    @property
    def flops(self) -> float:
        """Useful operations of a product or of attention."""
        return self.work().flops if self.is_product or self.is_attention else 0.0

    def work(self) -> Work:
        """The same kernel in the words of programs."""
        if self.is_product:
            m, n, k = self.sizes
            return library_kernels.linear(m, n, k, self.dtype)
        if self.family == "context_attention":
            batch, tokens, heads, kv_heads, head_dim = self.sizes
            return library_kernels.context_attention(((tokens, 0),) * batch, heads, kv_heads, head_dim)
        if self.family == "generation_attention":
            batch, keys, heads, kv_heads, head_dim = self.sizes
            return library_kernels.generation_attention(((1, keys),) * batch, heads, kv_heads, head_dim)
        return ops.passes(self.moved_bytes / 2.0, self.moved_bytes / 2.0)


def _short(name: str, size: int) -> str:
    return f"{size / 2**20:g} MiB" if name.endswith("_bytes") else str(size)
