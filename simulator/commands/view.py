"""`braid view`: open a trace in the Perfetto UI, without a network."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

TRACE = "trace.json.gz"


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--port", default=0, metavar="N", type=click.IntRange(0, 65535),
              help="Serve on this port; 0 takes one that is free.  [default: 0]")
@click.option("--browser/--no-browser", default=True, help="Open the address in the browser, or only print it.")
def view(path: Path, port: int, browser: bool) -> None:
    """Open a trace in the Perfetto UI, served on this computer until Ctrl-C.

    PATH is a folder that --out wrote, or a trace.json.gz. Needs the extra 'ui': pip install '.[ui]'.

    \b
    Examples:
      braid run a3_prefill:microbatch --out results/microbatch
      braid view results/microbatch
      # on a computer without a browser, to be reached through a tunnel
      braid view results/microbatch --port 9001 --no-browser
    """
    import contextlib
    import webbrowser

    from simulator.commands.perfetto import server

    with server(_trace(path), port) as serving:
        address = f"http://127.0.0.1:{serving.server_port}"
        click.echo(f"{_trace(path)} is at {address} (Ctrl-C ends)")
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()


def _trace(path: Path) -> Path:
    """The trace that is meant; InputError if there is none."""
    from simulator.errors import InputError

    path = path.expanduser()
    found = path / TRACE if path.is_dir() else path
    if found.is_file():
        return found
    below = sorted(str(one.parent) for one in path.glob(f"*/{TRACE}")) if path.is_dir() else []
    there = f"; there is one in {', '.join(below)}" if below else "; `braid run SCENARIO --out FOLDER` writes one"
    raise InputError(f"there is no trace at '{found}'{there}")
