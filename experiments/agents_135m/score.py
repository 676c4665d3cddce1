"""Scores of checkpoints of one seed, on the screen: a look at what training did and how long scoring takes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from scoring import Scorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="checkpoints, in seedS of the working folder")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--split", default="dev", choices=("dev", "test", "check"))
    parser.add_argument("--count", type=int, help="prompts of a sub-task; left out: all of the split")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    scorer = Scorer(given.work, given.seed, given.device, tiny=given.tiny)
    for folder in given.folders:
        started = time.perf_counter()
        found = scorer.score(given.work / f"seed{given.seed}" / folder, given.split, count=given.count)
        seconds = time.perf_counter() - started
        shares = " ".join(f"{task} {100 * float(right.mean()):.1f}" for task, right in found.items())
        print(f"{folder}: {seconds:.2f} s; {shares}", flush=True)


if __name__ == "__main__":
    main()
