"""The command `braid`: its commands in the order of a first visit, and the one place where errors become exit codes.

Only click is imported here, so that `braid --help` answers at once; a command imports the simulator when it runs.
"""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click as plain_click
import rich_click as click

from simulator.commands.calibrate import calibrate
from simulator.commands.compare import compare
from simulator.commands.explain import explain
from simulator.commands.library import list_scenarios, machines, models, services, show
from simulator.commands.probe import probe
from simulator.commands.report import report
from simulator.commands.results import bench, influence, steps, validate
from simulator.commands.run import run
from simulator.commands.search import search
from simulator.commands.serve import serve
from simulator.commands.step import step
from simulator.commands.sweep import ladder, sweep
from simulator.commands.view import view
from simulator.commands.whatif import whatif
from simulator.errors import BraidError, Interrupted

_COMMANDS = {"step": step, "list": list_scenarios, "services": services, "models": models,
             "machines": machines, "show": show, "run": run, "serve": serve, "search": search, "explain": explain,
             "compare": compare, "whatif": whatif, "report": report, "view": view, "sweep": sweep, "ladder": ladder,
             "steps": steps, "validate": validate, "influence": influence, "bench": bench,
             "calibrate": calibrate, "probe": probe}

READER_GONE = 128 + 13
_BLAS_THREADS = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"


class _Group(click.RichGroup):
    """Keeps the commands in the order given and lets Ctrl-C pass as one of Braid's errors."""

    def list_commands(self, ctx: plain_click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: plain_click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None


class _Help(click.RichHelpFormatter):
    """Help without blanks at the ends of its lines."""

    def getvalue(self) -> str:
        return re.sub(r"(?m)(?: |\x1b\[[\d;]*m)+$", lambda end: end[0].replace(" ", ""), super().getvalue())


click.RichContext.formatter_class = _Help


def _version(ctx: plain_click.Context, _: plain_click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from simulator.paths import installed_version

    click.echo(f"braid {installed_version()}")
    ctx.exit()


@click.group(cls=_Group, context_settings={
    "help_option_names": ["-h", "--help"],
    "rich_help_config": click.RichHelpConfiguration(text_paragraph_linebreaks="\n\n"),
})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
              help="Show the version and exit.")
def braid() -> None:
    """Simulate LLM-inference clusters: what does an overlap buy on this machine, and why?

    A SCENARIO is FILE:FUNCTION from the library (a3_prefill:microbatch) or from a file of your own (my.py:mine).

    Exit codes: 0 done, 1 a run failed, 2 wrong usage or input, 130 interrupted, 141 the output is not read.
    BRAID_DEBUG=1 shows tracebacks.

    \b
    Start here:
      # what there is, and what one scenario consists of
      braid list
      braid show a3_prefill:microbatch
      # simulate it, and see what the second micro-batch buys
      braid run a3_prefill:microbatch
      braid compare a3_prefill:dp a3_prefill:microbatch
      # what would a free dispatch buy, or HBM twice as fast?
      braid whatif a3_prefill:microbatch --only free,faster
      # change a number, keep a trace
      braid run a3_prefill:dp --set batch.requests=32 --out results/dp
    """


for _name, _command in _COMMANDS.items():
    braid.add_command(_command, _name)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command line (default: that of the process) and ends the process with its exit code.

    Matrices are too small here for several threads, which would only spin: numpy gets one, unless the user said more.
    """
    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")  # before numpy is imported
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what is printed has signs that not every locale can encode
            stream.reconfigure(encoding="utf-8")
    try:
        code = braid.main(arguments, prog_name="braid", standalone_mode=False)
    except (plain_click.Abort, Interrupted) as error:
        code = _complain(str(error) or "interrupted", Interrupted.exit_code, prefix="")
    except (BrokenPipeError, SystemExit) as error:  # rich and rich-click make an exit of a pipe that is closed
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        code = _nobody_reads()
    except BraidError as error:
        code = _complain(str(error), error.exit_code)
    except plain_click.UsageError as error:
        name = error.ctx.command_path if error.ctx else "braid"
        code = _complain(f"{error.format_message()}\nTry '{name} --help'.", error.exit_code)
    except plain_click.ClickException as error:
        code = _complain(error.format_message(), error.exit_code)
    except OSError as error:  # files are looked at before a run: a full disk, a terminal that is gone, or a user's file
        from simulator.paths import located

        where = f" '{error.filename}'" if error.filename else ""
        text = f"cannot read or write{where}: {error.strerror or error}"
        code = _complain(located(error, text), BraidError.exit_code)
    except MemoryError:
        code = _complain("out of memory: this needs more than the computer has", BraidError.exit_code)
    except Exception as error:
        from simulator.paths import located, own_location

        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        defect = "" if own_location(error) else "\nThis is a defect; BRAID_DEBUG=1 shows where."
        code = _complain(located(error, what) + defect, BraidError.exit_code)
    gc.freeze()  # what is left dies with the process: to look for cycles among it is wasted time
    sys.exit(code if isinstance(code, int) else 0)


def _nobody_reads() -> int:
    """The exit code of what SIGPIPE ends, as shells have it; what is left to print goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    return READER_GONE


def _complain(text: str, exit_code: int, prefix: str = "Error: ") -> int:
    """Prints one message on stderr, with the traceback before it if BRAID_DEBUG is set."""
    if os.environ.get("BRAID_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    click.echo(prefix + text, err=True)
    return exit_code
