"""Braid: a discrete-event simulator of LLM-inference clusters.

This file imports next to nothing, so that the command line answers at once; import from the modules.
"""

from pathlib import Path

from simulator.compiled import use_compiled

COMPILED = use_compiled(Path(__file__).parent)
"""Whether the hot modules run compiled (see `simulator.compiled`)."""
