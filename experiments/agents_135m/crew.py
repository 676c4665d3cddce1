"""The processes of a sweep: how many merge and how many score, on which GPU, with how many threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jobs import begin_merging, begin_scoring
from pool import Worker
from train import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

GPU_MERGERS = 3  # on one GPU: what they do on the processors lies beside each other's matrices
GPU_THREADS = 3  # of such a process
THREADS = 2  # of one on the processors alone: many of few threads waste less than few of many
LONGEST = 150  # seconds of a merge


def workers_of(given: argparse.Namespace, counts: Mapping[str, int]) -> tuple[list[Worker], list[Worker]]:
    """Those that merge and those that score.

    On every GPU some merge and some score; the rest of the processors merge in processes of a few threads each.

    Args:
        given: the command line.
        counts: prompts of a sub-task by split.
    """
    folder, cores = given.work / f"seed{given.seed}", len(os.sched_getaffinity(0))
    gpus = visible(given.gpus) if given.gpus and not given.tiny else []
    scorers = given.scorers * len(gpus) or 1
    left = cores - scorers - GPU_MERGERS * len(gpus)
    mergers = [
        Worker("cpu", begin_merging, (folder, min(THREADS, cores), "cpu"), quiet(""), LONGEST)
        for _ in range(max(1, left // THREADS))
    ]
    mergers += [
        Worker("gpu", begin_merging, (folder, GPU_THREADS, "cuda"), quiet(gpu), LONGEST)
        for _ in range(GPU_MERGERS)
        for gpu in gpus
    ]
    scored = (given.work, given.seed, "cuda" if gpus else "cpu", given.tiny, dict(counts))
    places = [gpu for _ in range(given.scorers) for gpu in gpus] or [""]
    return mergers, [Worker("score", begin_scoring, scored, quiet(gpu), 90) for gpu in places]


def quiet(gpu: str) -> dict[str, str]:
    """One GPU or none, and no threads of libraries beside ours."""
    few = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**few, "RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true", "CUDA_VISIBLE_DEVICES": gpu}
