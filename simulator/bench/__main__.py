"""`python -m simulator.bench NAME` measures one case in this process and prints it as one line of JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys

from simulator.bench.case import peak_mib
from simulator.bench.suite import CASES


def main(name: str) -> None:
    """Measures the case of that name."""
    case = next(case for case in CASES if case.name == name)
    os.environ.update(case.variables)
    module, function = case.where.split(":")
    done = getattr(importlib.import_module(module), function)()
    print(json.dumps({"value": done.value, "cpu_s": done.cpu_s, "counts": done.counts, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    main(sys.argv[1])
