"""`python -m simulator.bench NAME` measures one benchmark in this process and prints it as one line of JSON."""

from __future__ import annotations

import json
import os
import sys

from simulator.bench.benchmark import peak_mib
from simulator.bench.suite import BENCHMARKS


def main(name: str) -> None:
    """Measures the benchmark of that name."""
    benchmark = next(one for one in BENCHMARKS if one.name == name)
    os.environ.update(benchmark.variables)
    done = benchmark.measure()
    print(json.dumps({"value": done.value, "cpu_s": done.cpu_s, "counts": done.counts, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    main(sys.argv[1])
