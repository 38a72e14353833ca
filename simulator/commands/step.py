"""`braid step`: one step of any transformer, without a scenario file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import rich_click as click

from simulator.commands import options

WORDS = {"batch": "batch.requests", "context": "batch.context", "prefix": "batch.prefix", "chunk": "batch.chunk",
         "prompt": "batch.prompt", "drafts": "batch.drafts", "acceptance": "batch.acceptance",
         "schedule": "knobs.schedule", "micro_batches": "knobs.micro_batches", "exchange": "knobs.exchange",
         "precision": "knobs.precision"}  # fmt: skip


@click.command()
@click.option("--model", required=True, metavar="NAME",
              help="Of the library, or a Hugging Face config.json, or its folder.")
@click.option("--machine", required=True, metavar="NAME", help="Of the library, or the path of a .toml file.")
@click.option("--mesh", default="", metavar="AXES", help="As tp=8,ep=8; axes are tp, dp, cp, ep, pp, the placements "
              "o_proj, dense, shared, head, embedding, and apart: so many ranks behind those that attend hold the "
              "routed experts (dp=6,ep=2,apart=2).  [default: the smallest tp that fits]")
@click.option("--stack", default="", metavar="NAME", help="Whose kernels: vllm, sglang, trtllm, cann, ...  "
              "[default: the first of the machine's that runs the model]")
@click.option("--phase", default="decode", show_default=True, metavar="NAME", help="decode, prefill, or mixed (a chunk "
              "of a prompt beside requests that decode).")
@click.option("--batch", metavar="N", help="Requests over the whole mesh: that decode, or whose prompts are prefilled.")
@click.option("--context", metavar="N", help="Tokens of each: cached ones in decode, new ones in prefill.")
@click.option("--prefix", metavar="N", help="Cached tokens before those of a prompt.")
@click.option("--chunk", metavar="N", help="Prompt tokens in one pass (chunked prefill).")
@click.option("--prompt", metavar="N", help="mixed: prompt tokens beside the requests that decode.")
@click.option("--drafts", metavar="N", help="Draft tokens of a request in one iteration (MTP, EAGLE).")
@click.option("--acceptance", metavar="P", help="Probability that a draft token is accepted after those before it.")
@click.option("--schedule", metavar="NAME", help="one_stream, shared_beside, single_batch, two_batches, hooks, "
              "side_by_side, or ping_pong (experts on ranks apart).  [default: as the stack does]")
@click.option("--micro-batches", metavar="N", help="Of all but single_batch and two_batches.  [default: 1 of "
              "one_stream and shared_beside, 2 of the others]")
@click.option("--exchange", metavar="NAME", help="How tokens reach their experts: all_reduce, all_gather, all_to_all, "
              "put_collect, ...  [default: all_reduce; all_gather between groups (dp), all_to_all to ranks apart]")
@click.option("--precision", metavar="MODULE=DTYPE,...", help="As all=fp8 or experts=mxfp4,kv=fp8.  [default: the "
              "checkpoint's]")
@options.settings
@options.seed
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE.py",
              help="Write the scenario down, to run and change.")
@options.as_json
def step(model: str, machine: str, mesh: str, stack: str, phase: str, settings: dict[str, str], seed: int,
         save: Path | None, as_json: bool, **words: str | None) -> None:
    """Simulate one step of a model on a machine: TPOT or TTFT, memory, utilisation, and what bounds it.

    The words are settings of `braid run transformer:decode` (`braid show transformer:decode` lists all).

    \b
    Examples:
      braid step --model llama_3_1_70b --machine dgx_h100 --batch 64
      # a model of your own
      braid step --model config.json --machine dgx_h200 --phase prefill
      # experts on as many places as ranks, tensor parallel attention
      braid step --model gpt_oss_120b --machine dgx_h200 --mesh tp=8,ep=8
      # two micro-batches, one's communication beside the other's work
      braid step --model qwen3_32b --machine dgx_h200 --schedule two_batches
    """
    from simulator.commands.output import result_object, to_json, warn_unread, write_text
    from simulator.commands.request import simulate
    from simulator.die.memory import DoesNotFit
    from simulator.observe.report import print_report
    from simulator.study.step import StepWords, said, saved, step_of, utilisation, what_fits

    if save is not None and save.suffix != ".py":
        raise click.UsageError(f"--save {save}: a scenario is a Python file: {save.with_suffix('.py')} would do")
    given = {WORDS[word]: text for word, text in words.items() if text is not None}
    scenario = step_of(StepWords(model, machine, stack, mesh, phase, given | settings))
    try:
        result = simulate(scenario, "roles", seed)
    except DoesNotFit as error:
        raise DoesNotFit(error.ledger, what_fits(scenario)) from None
    result.metrics.update(utilisation(result))
    if save is not None:
        write_text(save, saved(scenario))
    if as_json:
        warn_unread(scenario.name, result.header["unread"])
        ledger = [{"category": one.category, "name": one.name, "bytes": one.size_bytes} for one in result.ledger.items]
        click.echo(to_json(result_object(result) | {"memory": ledger}))
        return
    from simulator.commands.summary import report_of

    report = report_of(result)
    print_report(replace(report, facts=[said(scenario), *report.facts]))
    click.echo(f"memory of the fullest rank\n\n{result.ledger}")
    if save is not None:
        click.echo(f"wrote {save}")
