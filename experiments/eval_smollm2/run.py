"""One real merge from weights to verdict: base, two agents, two merges, their scores, and the comparison.

    python experiments/eval_smollm2/run.py WORK

Every stage is skipped where its result lies in WORK, so that a killed run goes on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import skills
import train

from agentmerge.eval.compare.figures import figures_of
from agentmerge.eval.compare.rows import Comparison

HERE = Path(__file__).resolve().parent
STEPS = {"tool": 8, "memory": 14}
COUNTS = {"tool": 48, "memory": 48, "facts": 40}
LIMIT = 32
"""Prompts of each skill that are asked."""
METHODS = {"wudi_auto": [], "ram_plus_auto": []}
FOLLOWED = "skip_mlp"
"""`ram_plus_auto` with the rule that the verdict on it advised."""
RESULTS = HERE.parents[1] / "docs" / "eval-smollm2"


def main(work: Path) -> None:
    """All of it."""
    work.mkdir(parents=True, exist_ok=True)
    prompts = work / "prompts.jsonl"
    if not prompts.exists():
        skills.write(prompts, COUNTS, seed=2, without=frozenset())
    held_out = frozenset(sample["prompt"] for skill in COUNTS for sample in skills.samples(skill, COUNTS[skill], 2))
    base = work / "models" / "base"
    if not base.exists():
        train.make_base(base)
    for skill, steps in STEPS.items():
        if not (out := base.with_name(skill)).exists():
            train.train(base, out, skill, steps, seed=1, without=held_out)
    agents = [f"--agent={skill}={base.with_name(skill)}" for skill in STEPS]
    for method, options in METHODS.items():
        if not (out := base.with_name(method)).exists():
            told = ["--method", method, "--rounding", "stochastic", *options]
            agentmerge("merge", "--base", base, *agents, *told, "--out", out, "--report")
    if not (out := base.with_name(FOLLOWED)).exists():
        agentmerge("merge", recipe_of(work, base), "--out", out)
    models = ["base", *STEPS, *METHODS, FOLLOWED]
    for name in models:
        settings = {"file": prompts, "scoring": f"{HERE / 'scoring.py'}:worth", "max_tokens": 32}
        chosen = [f"--set=jsonl.{key}={value}" for key, value in settings.items()]
        agentmerge(
            "eval",
            base.with_name(name),
            "--suites",
            "jsonl",
            *chosen,
            "--limit",
            LIMIT,
            "--out",
            work / "scores" / name,
        )
    compare(work, models)


def recipe_of(work: Path, base: Path) -> Path:
    """What the verdict on the first two merges advises: `memory` skipped where most of its changes are."""
    sources = ", ".join(f"{skill}: {base.with_name(skill)}" for skill in STEPS)
    rules = 'rules: [{tensors: "*mlp*", skip: [memory]}]'
    path = work / "skip_mlp.yaml"
    lines = [
        f"base: {base}",
        f"agents: {{{sources}}}",
        "method: ram_plus_auto",
        "output: {rounding: stochastic}",
        rules,
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(work: Path, models: list[str]) -> None:
    """The tables as JSON and Markdown, the page, and two of its figures."""
    folders = [work / "scores" / name for name in models]
    RESULTS.mkdir(parents=True, exist_ok=True)
    texts = {
        name: agentmerge("eval", "compare", *folders, *form, kept=True).replace(f"{work}/", "")
        for name, form in {"comparison.json": ["--json"], "comparison.md": ["--format", "markdown"]}.items()
    }
    agentmerge("eval", "compare", *folders, "--report", work / "page.html")
    for name, text in texts.items():
        (RESULTS / name).write_text(text)
    drawn = figures_of(Comparison.model_validate_json(texts["comparison.json"]))
    for name in ("bars", "skills"):
        (RESULTS / f"{name}.svg").write_bytes(drawn[name][1]["svg"])


def agentmerge(*arguments: object, kept: bool = False) -> str:
    """Run a command as a user does; return what it prints where that is wanted."""
    command = [sys.executable, "-m", "agentmerge", *map(str, arguments)]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if kept else None)
    return done.stdout or ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
