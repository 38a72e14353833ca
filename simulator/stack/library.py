"""Kernels of the public inference libraries on GPUs, as `braid calibrate kernels --chip` fits them.

Products quantise their own input, attention writes the cache, and routed experts are one operator of a few kernels
(`model.library_kernels`); what stands between them (norms, rotation, activations) is that of `GpuStack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.die.kernels import Work
from simulator.model import library_kernels as library
from simulator.model import ops
from simulator.model.micro_batch import MicroBatch
from simulator.model.transformer import Dense, Experts, Grouped, Latent, Model
from simulator.stack.gpu import GpuStack, Kernels, _own, in_l2


@dataclass(frozen=True)
class LibraryStack(GpuStack):
    """A stack whose products, attention and experts are measured operators."""
