"""The command `agentmerge eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli.console import resumable, say, tell_warnings
from agentmerge.cli.eval_progress import Shown
from agentmerge.cli.eval_tables import plan_parts, record_parts
from agentmerge.cli.options import Json, Quiet, takes_settings
from agentmerge.cli.process import printing
from agentmerge.errors import EvalError
from agentmerge.eval.empty import said_of
from agentmerge.eval.options import Options, make_generator, make_jobs
from agentmerge.eval.plan import plan_all
from agentmerge.eval.run import evaluate


@takes_settings(Options, Options.of)
def eval(  # noqa: A001 - the command's name
    options: Options,
    model: Annotated[str, typer.Argument(help="A checkpoint's folder, or the name that a server knows.")],
    suites: Annotated[str, typer.Option(help="Names with commas between; see `agentmerge eval doctor`.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for answers, scores and record; the same one resumes.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Of all suites, or SUITE=PRESET with commas between.")] = "paper",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SUITE.FIELD=VALUE", help="A setting of a suite; repeat.", show_default=False),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it will cost; no model is asked.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask a model the questions of benchmarks and score its answers.

    Every answer is stored as soon as it is there: the same command resumes, and asks nothing twice.
    """
    jobs = make_jobs(suites, preset, set_ or (), options.given(model), options.limit)
    if plan:
        plans = plan_all(jobs, options.given(model).tokenizer)
        say(plans if json else plan_parts(plans), as_json=json, quiet=quiet)
        return
    if out is None:
        raise EvalError("eval: no --out is given", todo="Give the folder that answers, scores and the record go to.")
    shown = Shown(quiet)
    generator = None if options.score_only else make_generator(model, options, shown.waiting)
    with resumable(), shown:
        record = evaluate(model, jobs, generator, out, listener=shown)
    with printing(f"The evaluation is complete in {out}"):
        names = [job.suite.name for job in jobs]
        told = [(name, said_of(record.suites[name].empty, record.suites[name].requests)) for name in names]
        tell_warnings([f"{name}: {text}" for name, text in told if text], quiet)
        say(record if json else record_parts(record, names, out), as_json=json, quiet=quiet)
