"""Ask the harm guard about every agent of a seed, and turn what it says into recipes of the sets with a damaged one.

    python experiments/agents_135m/guard.py --work WORK --seed 1

The guard sees the base's own answers to about a hundred prompts (prompts.jsonl of the cold start) and no score. What it
measured goes to seedS/harm.json, its advice by set to seedS/advice.json, which sweep.py merges with.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from journal import write_atomically
from sets import HARM, MODELS, SETS, domain_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="what train.py was given")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--device", default="auto", help="cpu or cuda")
    parser.add_argument("--agents", help="with commas; left out: all that are there")
    given = parser.parse_args()
    folder = given.work / f"seed{given.seed}"
    there = [name for name in MODELS if name != "base" and (folder / "agents" / name / "config.json").exists()]
    names = given.agents.split(",") if given.agents else there
    started = time.time()
    found = measured(folder, names, given.device)
    write_atomically(folder / "harm.json", found | {"seconds": round(time.time() - started, 1)})
    write_atomically(folder / "advice.json", {name: advice_for(found["change"], SETS[name]) for name in HARM})
    print(json.dumps(found["change"]), *found["verdict"], f"{time.time() - started:.0f} s", sep="\n", flush=True)


def measured(folder: Path, names: list[str], device: str) -> dict[str, Any]:
    """What the product's guard says of these agents; each may change what it was trained on."""
    from agentmerge.harm.options import HarmOptions
    from agentmerge.harm.run import measure_harm

    recipe = {
        "base": str(folder / "base"),
        "agents": {name: {"source": str(folder / "agents" / name)} for name in names},
        "method": "ram",
    }
    own = {name: [domain_of(name)] for name in names}
    record = measure_harm(recipe, asked(folder), HarmOptions.of(device=device), own=own)
    places = {"base": f"{folder.name}/base", "data": f"{folder.name}/guard.jsonl"}  # of any machine
    return record.model_dump(mode="json") | places


def asked(folder: Path) -> Path:
    """The prompts as the guard reads them: a domain is a skill."""
    records = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    lines = [
        json.dumps({"prompt": r["prompt"], "response": r["response"], "skill": r["task"].split("/")[0]})
        for r in records
    ]
    path = folder / "guard.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def advice_for(change: dict[str, Any], agents: tuple[str, ...]) -> dict[str, Any]:
    """The part of the advice that concerns a set, as `rules.advised` reads it."""
    rules = [{**rule, "skip": [name for name in rule["skip"] if name in agents]} for rule in change.get("rules", ())]
    weights = {name: fields["weight"] for name, fields in change.get("agents", {}).items() if name in agents}
    return {
        "leave_out": [name for name in change.get("leave_out", ()) if name in agents],
        "weights": weights,
        "rules": [rule for rule in rules if rule["skip"]],
    }


if __name__ == "__main__":
    main()
