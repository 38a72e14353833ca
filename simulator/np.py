"""NumPy, imported when something of it is first used: what only lists scenarios, or says its version, never does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from numpy import *  # noqa: F403
    from numpy import ndarray
else:

    def __getattr__(name: str) -> Any:
        """As `numpy` has it, from now on without a detour; what the import system asks for, modules lack by default."""
        if name.startswith("__"):
            raise AttributeError(name)
        import numpy

        globals()[name] = found = getattr(numpy, name)
        return found


Array: TypeAlias = "ndarray[Any, Any]"
