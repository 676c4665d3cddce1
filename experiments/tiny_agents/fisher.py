"""Measure the importance that Fisher merging reads: each agent's own right answers to training prompts.

python experiments/tiny_agents/fisher.py --agents DIR --seed 1
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.tiny.domains.domain import LEVELS
from agentmerge.eval.tiny.tasks import SubTask
from agentmerge.importance.run import Options, measure

EXAMPLES = 256


def main() -> None:
    """One folder NAME.importance beside every agent of the three."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    for name in ("code", "memory", "tool"):
        folder = given.agents / f"seed{given.seed}"
        data, out = folder / f"{name}.rollouts.jsonl", folder / f"{name}.importance"
        if out.exists():
            shutil.rmtree(out)
        data.write_text("".join(rollouts(folder / name, name)))
        options = Options.of(
            examples=EXAMPLES, max_length=128, chat=False, device="cpu", dtype="float32", every=EXAMPLES
        )
        measure(str(folder / name), data, out, options)


def rollouts(agent: Path, domain: str) -> list[str]:
    """The agent's greedy answers, easy and hard, as JSON lines."""
    prompts = [s.prompt for level in LEVELS for s in SubTask(domain, level).samples("train", EXAMPLES // 2, seed=7)]
    answers = LanguageModel.load(agent).answers(prompts)
    rows = zip(prompts, answers, strict=True)
    return [json.dumps({"prompt": prompt, "response": text}) + "\n" for prompt, (text, _) in rows if text]


if __name__ == "__main__":
    main()
