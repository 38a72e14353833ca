"""Do the tests notice when the kernel of the simulator is changed? A sample of mutants, each against the tests.

    python -m tests.trust.mutate --sample 200 --seed 0         writes results/trust/mutation.md
    python -m tests.trust.mutate --sample 200 --seed 0 --only replay --time 600

Works on a copy of the checkout. Each mutant meets the tests most likely to find it first, and is killed by the first
that fails; one that takes much longer than the tests do counts as killed. What is known of a mutant is kept in a file,
and those killed are not run again; survivors are, so that a new test can be seen to kill them.

A script of our own: mutmut 3 draws no sample and rewrites functions in a way of its own, cosmic-ray 8 has one list of
tests for all mutants and a new process for each, and leaves out no statement. Each mutant is imported in a fork of a
process that has all large libraries, which saves half of the time. Compiled modules whose sources differ are
ignored by Braid itself; the C file of coupled flows is no Python and stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import NoReturn

from simulator.observe.files import whole_file
from tests.trust.mutants import Mutant, mutants_of
from tests.trust.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "trust"
STATE = ROOT / "results" / "mutants.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
AGREE = "tests/trust/test_agree.py"
TESTS = {  # the likeliest first
    "physics": [AGREE, "tests/replay", "tests/law/physics", "tests/golden"],
    "collective": ["tests/trust/test_exchanges.py", "tests/collective", AGREE, "tests/replay", "tests/golden",
                   "tests/law/replay"],
    "replay": ["tests/replay", AGREE, "tests/die/test_npu.py", "tests/golden", "tests/live", "tests/program",
               "tests/collective", "tests/law/replay", "tests/law/test_faults.py"],
}
LEFT_OUT = {"build_hook.py", "__init__.py"}  # built with, not run
LIMIT_S = 10.0
"""Of one test of a mutant, in seconds of the processor: five times what the slowest takes."""
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "killed by time"


def sample(count: int, seed: int) -> list[Mutant]:
    """So many mutants of each package's share, in the order of a draw."""
    everything = [one for package in TESTS for file in sorted((ROOT / "simulator" / package).glob("*.py"))
                  if file.name not in LEFT_OUT for one in mutants_of(ROOT, file.relative_to(ROOT).as_posix())]
    drawn = Random(seed).sample(everything, min(count, len(everything)))
    return [one for one in drawn if _is_python(one)]


def _is_python(mutant: Mutant) -> bool:
    try:
        compile(mutant.text, mutant.file, "exec")
    except SyntaxError:
        return False
    return True


def package_of(mutant: Mutant) -> str:
    """The folder of its file."""
    return mutant.file.split("/")[1]


def copied(folder: Path) -> None:
    """What is tracked, and the C library if it is built."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in [*listed.splitlines(), "simulator/physics/libranked.so"]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def tried(mutant: Mutant, folder: Path) -> tuple[str, str]:
    """What became of a mutant, and the first test that failed."""
    place, printed = folder / mutant.file, folder / "printed"
    place.write_text(mutant.text, encoding="utf-8")
    child = os.fork()
    if not child:
        _test(folder, printed, TESTS[package_of(mutant)])
    _, status = os.waitpid(child, 0)
    shutil.copy2(ROOT / mutant.file, place)
    if os.WIFSIGNALED(status):
        return TIMED_OUT, ""
    code = os.WEXITSTATUS(status)
    failed = [line for line in printed.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (KILLED, failed[0].split(" - ")[0] if failed else "") if code else (SURVIVED, "")


def _test(folder: Path, printed: Path, tests: Sequence[str]) -> NoReturn:
    """Runs tests of a folder in this process, which has all large libraries and forgets its own modules, and ends."""
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile("once", phases=[Phase.explicit, Phase.generate], database=None)  # no smaller example
    settings.load_profile("once")
    code = 1
    try:
        os.chdir(folder)
        file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "CompiledFinder"]
        for name in [one for one in sys.modules if one.partition(".")[0] in ("simulator", "tests")]:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        for path in tests:
            code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-m", "not slow",
                                    "--hypothesis-seed=0", path], plugins=[_Limit()]))  # fmt: skip
            if code:
                break
    finally:
        sys.stdout.flush()
        os._exit(code)


def _check_unchanged(packages: Iterable[str], folder: Path) -> None:
    """Ends the script where a test fails that nothing was changed for: every mutant would be killed."""
    for package in sorted(packages):
        file = f"simulator/{package}/__init__.py"
        outcome, test = tried(Mutant(file, 1, "", "", (ROOT / file).read_text(encoding="utf-8")), folder)
        if outcome != SURVIVED:
            sys.exit(f"the tests of {package} fail as things are: {test or outcome}")


class _Limit:
    """Ends the process by a signal where a test takes too long."""

    def pytest_runtest_logstart(self) -> None:
        """A test begins."""
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.mutate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants of all packages (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--only", choices=["", *TESTS], default="", help="of the sample, those of one package")
    parser.add_argument("--time", type=float, default=float("inf"), help="begin no other one after so many seconds")
    parser.add_argument("--known", action="store_true", help="try none: write the table of what is known")
    asked = parser.parse_args(arguments)
    state: dict[str, tuple[str, str, float]] = json.loads(STATE.read_text()) if STATE.exists() else {}
    whole = sample(asked.sample, asked.seed)
    drawn = [one for one in whole if asked.only in ("", package_of(one))]
    reasons = equivalents()
    left = [one for one in drawn if state.get(one.key, ("",))[0] in ("", SURVIVED) and one.key not in reasons]
    left.sort(key=lambda one: one.key in state)  # survivors after those that are new
    with tempfile.TemporaryDirectory() as place, suppress(KeyboardInterrupt):
        copied(Path(place))
        for library in ("hypothesis", "networkx", "numpy", "pyarrow", "pydantic", "pytest", "rich", "simpy", "xdist"):
            import_module(library)
        if left and not asked.known:
            _check_unchanged({package_of(one) for one in left}, Path(place))
        progress = Progress(len(left), "mutants")
        for one in left if not asked.known else ():
            if progress.spent_s > asked.time:
                break
            began_s = time.monotonic()
            outcome, test = tried(one, Path(place))
            state[one.key] = outcome, test, round(time.monotonic() - began_s, 1)
            with whole_file(STATE) as part:
                part.write_text(json.dumps(state, indent=0), encoding="utf-8")
            if outcome == SURVIVED:
                print(f"{one.file}:{one.line}: {one.change}", flush=True)
            progress.step()
        progress.end()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with whole_file(RESULTS / "mutation.md") as part:
        part.write_text(table(whole, state, asked.seed), encoding="utf-8")
    return 0


def equivalents() -> dict[str, str]:
    """Mutants that do the same as what they were made of, by key, with the reason."""
    found = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    return {f"{one['file']} | {one['code']} | {one['change']}": one["reason"] for one in found}


_HEAD = """# Mutants of the kernel

A sample (seed {seed}) of the changes that `tests/trust/mutants.py` makes in `simulator/physics`, `simulator/collective`
and `simulator/replay`, each against the tests of its package, the laws and the second implementation of a run. Made by
`python -m tests.trust.mutate`; equivalent ones change nothing that can be seen, and are left out of the share killed.
"""


def table(drawn: list[Mutant], state: dict[str, tuple[str, str, float]], seed: int) -> str:
    """The page of results."""
    reasons, rows = equivalents(), []
    known = [one for one in drawn if one.key in state or one.key in reasons]
    for package in (*TESTS, "all"):
        of = [one for one in known if package in ("all", package_of(one))]
        same = [one for one in of if one.key in reasons]
        dead = [one for one in of if one.key not in reasons and state[one.key][0] != SURVIVED]
        timed = sum(state[one.key][0] == TIMED_OUT for one in dead)
        rest = len(of) - len(same)
        rows.append(f"| {package} | {len(of)} | {len(dead)} | {timed} | {len(same)} | {rest - len(dead)} | "
                    f"{len(dead) / max(rest, 1):.1%} |")
    head = ("| package | sampled | killed | of these by time | equivalent | survived | killed of the rest |",
            "|---|---|---|---|---|---|---|")
    lines = [_HEAD.format(seed=seed), *head, *rows, ""]
    alive = [one for one in known if one.key not in reasons and state[one.key][0] == SURVIVED]
    lines += ["## Survivors", "", *(f"- `{one.file}:{one.line}`: `{one.change}`" for one in alive), ""] if alive else []
    lines += ["## Equivalent", ""]
    lines += [f"- `{one.file}:{one.line}`: `{one.change}`: {reasons[one.key]}" for one in known if one.key in reasons]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
