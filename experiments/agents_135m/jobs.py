"""What the processes of a sweep do: merge into a folder, or score one. Imports nothing heavy before it is needed."""

from __future__ import annotations

import base64
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from plans import Merge


@dataclass(frozen=True)
class Merging:
    """A merge, and the folder it goes into."""

    merge: Merge
    out: Path


@dataclass(frozen=True)
class Scoring:
    """A checkpoint to score: base, an agent, or what was merged, which is deleted afterwards."""

    name: str  # of the model, or the merge's key
    folder: Path
    splits: tuple[str, ...]
    domains: tuple[str, ...]
    merge: Merge | None = None


def begin_merging(seed_folder: Path, workers: int, device: str) -> Callable[[Merging], dict[str, Any]]:
    """Ready to merge."""
    from merging import Kitchen

    kitchen = Kitchen(seed_folder, workers, device)
    return lambda job: kitchen.make(job.merge, job.out)


def begin_scoring(
    work: Path, seed: int, device: str, tiny: bool, counts: dict[str, int]
) -> Callable[[Scoring], dict[str, Any]]:
    """Ready to score, on the first `counts` prompts of a sub-task; these are read and the model is made once."""
    import torch
    from changes import Changes
    from scoring import Scorer

    torch.set_num_threads(1)
    scorer, changes = Scorer(work, seed, device, tiny=tiny), Changes(work / f"seed{seed}", device)

    def score(job: Scoring) -> dict[str, Any]:
        started, found = time.perf_counter(), dict[str, Any]()
        for split in job.splits:
            right = scorer.score(job.folder, split, list(job.domains), counts[split])
            found[split] = {task: packed(bits) for task, bits in right.items()}
        if job.merge:
            from sets import SETS

            found["retention"] = changes.retention(job.folder, list(SETS[job.merge.set]))
            shutil.rmtree(job.folder)
        elif job.name != "base":
            found["change"] = changes.size(job.name)
        return found | {"score_seconds": round(time.perf_counter() - started, 2)}

    return score


def packed(right: np.ndarray) -> str:
    """Bits as text: eight to a byte, in base64."""
    import numpy as np

    return base64.b64encode(np.packbits(right).tobytes()).decode()
