"""What a plan takes: workers, blocks, memory, bytes and arithmetic, and whether that is too much to start unasked."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from agentmerge.errors import RecipeError
from agentmerge.files.drafts import Slot
from agentmerge.machine import available_cpus
from agentmerge.methods.arrays import speed
from agentmerge.methods.kernel import WHOLE
from agentmerge.tensors import DTYPES, Block
from agentmerge.values import format_flop

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agentmerge.engine.plan import Job, Plan
    from agentmerge.methods.base import Precision
    from agentmerge.sources.source import Source
    from agentmerge.tensors import TensorSpec

BLOCK_SIZES = 1 << 16, 8 << 20
"""Least and most bytes of the base in a block that is chosen here; a block costs about 0.3 ms whatever its size."""
BUFFERS, FEW, LEAST_BUFFERS = 1 << 30, 4, 168_000_000
"""Bytes that the blocks of all workers may take together before smaller ones are chosen: of few sources much, as small
blocks would keep many workers waiting for the interpreter; of more sources, whose blocks are the larger together, in
proportion less, so that any number of them is merged in 400 MB."""
MOST_WORKERS = 16
"""That read and write; what computes takes every processor."""
RESIDENT, PER_TENSOR = 225_000_000, 1000
"""Bytes of interpreter, numpy and compiled kernels beside the blocks, and of what is known of a tensor of a source, for
the memory estimate. The first is the most that a method was seen to take where it compiled its kernels, 40 to 45 MB
more than where it loads them from the cache."""
TORCH = 205_000_000
"""Bytes of torch once it is imported, measured with its 2.13 for processors; whole matrices look there for a GPU."""
LIMIT = 600.0
"""Seconds of arithmetic that are not started unasked."""
SLOW = {"cpu": 1e10, "cuda": 5e11}
"""FLOP per second that any machine reaches: what is quick at that needs no measuring before it is started."""
MOMENT = 1e11
"""FLOP that take a moment on any machine: no second is spent on measuring how long."""


def workers(plan: Plan) -> int:
    """Threads."""
    wanted = plan.recipe.run.workers
    if wanted != "auto":
        return wanted
    computing = any(job.work.flop and job.work.device == "cpu" for job in plan.merged)
    return available_cpus() if computing else min(available_cpus(), MOST_WORKERS)


def block_size(plan: Plan) -> int:
    """Bytes of the base in one block."""
    wanted = plan.recipe.run.block_size
    if wanted != "auto":
        return int(wanted)
    least, most = BLOCK_SIZES
    width = max((DTYPES[spec.dtype].itemsize for spec in plan.sources["base"].specs.values()), default=1)
    buffers = max(BUFFERS * FEW // max(len(_stacked(plan)), FEW), LEAST_BUFFERS)
    return min(max(buffers * width // (workers(plan) * _row_bytes(plan)), least), most)


def blocks(job: Job, size: int, start: int = 0, stop: int | None = None, least: int = 0) -> Iterator[Block]:
    """The blocks of elements [start, stop) of a job's tensor, every inner edge a multiple of the job's step.

    Args:
        job: one whose method must see whole rows or matrices gets them whole.
        size: bytes of the base in one block.
        start: of the elements.
        stop: of the elements; None is the tensor's end.
        least: a multiple of that step, in its place; 0 takes the step.
    """
    stop = job.tensor.elements if stop is None else stop
    least = least or job.step
    step = max(size // DTYPES[job.tensor.dtype].itemsize // least, 1) * least
    for edge in range(start - start % least, stop, step):
        yield Block(job.tensor, edge, min(edge + step, stop))


def input_bytes(plan: Plan) -> int:
    """Bytes of one pass over everything that is merged."""
    return sum(job.bytes_read(job.tensor.elements) for job in plan.merged)


def output_bytes(plan: Plan) -> int:
    """Bytes of the weight files to be written."""
    return plan.layout.file_bytes


def drafts_of(plans: Iterable[Plan]) -> dict[str, Slot]:
    """What folds keep for the last pass of these plans, in the order of their tensors."""
    dear = [job for plan in plans for job in plan.merged if job.work.draft]
    return {f"{job.work.draft} {job.name}": _slot(job.tensor) for job in dear}


def _slot(tensor: TensorSpec) -> Slot:
    return Slot(tensor.elements, max(tensor.elements // prod(tensor.shape[-2:]), 1))


def memory_bytes(plan: Plan) -> int:
    """Resident memory to expect: each worker's largest block, and once the largest of what is done alone."""
    row, size = _row_bytes(plan), block_size(plan)
    alone, shared = [0.0], [0]
    for job in plan.jobs:
        taken = max((block.elements for block in blocks(job, size)), default=0) * _width(job, row)
        taken += job.work.bytes + job.bytes_whole
        if job.work.share:
            alone.append(taken * min(1 / job.work.share, workers(plan)))
        else:
            shared.append(taken)
    return resident(plan) + workers(plan) * max(shared) + int(max(alone))


def resident(plan: Plan) -> int:
    """Bytes beside the blocks: of the program, of torch, and of what is known of every source's tensors."""
    torch = TORCH * ("torch" in sys.modules and any(job.work.reach in WHOLE for job in plan.merged))
    return RESIDENT + torch + PER_TENSOR * sum(len(source.specs) for source in plan.sources.values())


def _width(job: Job, row: int) -> int:
    """Bytes of an element: of what is merged whole, its result before the cast besides."""
    return row + 4 * (job.work.reach in WHOLE)


def _row_bytes(plan: Plan) -> int:
    """Bytes that one element takes at most in a worker's buffers: of every source, restored, and its result.

    Put onto another checkpoint, that one's and the float32 result besides.
    """
    read = sum(map(_widest, _stacked(plan))) + 4 * (plan.family.onto is not None)
    return 4 + read + 4 * len(plan.rounding)


def _stacked(plan: Plan) -> list[Source]:
    """What is read block by block."""
    family, importance = plan.family, plan.beside.get("importance", {})
    onto = [] if family.onto is None else [family.onto]
    return [family.base, *onto, *family.agents.values(), *importance.values()]


def _widest(source: Source) -> int:
    return max((DTYPES[spec.dtype].itemsize for spec in source.specs.values()), default=0)


def check_cost(plan: Plan) -> None:
    """Raise RecipeError for work that this machine can't do, or that takes long unless that is allowed."""
    costs = _costs(plan)
    if plan.recipe.run.allow_slow or all(flop < LIMIT * SLOW[device] for (device, _), flop in costs.items()):
        return
    if (seconds := _seconds(costs)) > LIMIT:
        raise RecipeError(
            f"method: '{plan.recipe.method.name}' takes {format_flop(sum(costs.values()))}, about "
            f"{_time(seconds)} here; more than {_time(LIMIT)} is not started unasked",
            todo="Run it where torch finds a CUDA device, choose cheaper settings (`agentmerge methods` lists them), "
            "or set run.allow_slow: true (--allow-slow).",
        )


def cost_line(plan: Plan) -> str:
    """For people, in one line; "" where no method computes much."""
    cost = cost_of(plan)
    if not cost.devices:
        return ""
    where = " and ".join("a GPU" if device == "cuda" else device.upper() for device in cost.devices)
    time = f"about {_time(cost.seconds)}" if cost.seconds else "a moment"
    wanted = "; wants a GPU, or --allow-slow" if cost.seconds > LIMIT else ""
    return f"{format_flop(cost.flop)} on {where}, {time}{wanted}"


class Cost(NamedTuple):
    """What a plan's methods compute beside going through the elements."""

    flop: float
    seconds: float
    """Of this machine; 0 for a moment, which is not measured."""
    devices: list[str]
    """Where: cpu, cuda."""


def cost_of(plan: Plan) -> Cost:
    """What is computed; RecipeError for work that this machine can't do."""
    costs = _costs(plan)
    return Cost(sum(costs.values()), _seconds(costs), sorted({device for device, _ in costs}))


def _costs(plan: Plan) -> dict[tuple[str, Precision], float]:
    """FLOP by device and precision; RecipeError for work that this machine can't do."""
    found: dict[tuple[str, Precision], float] = {}
    for job in plan.merged:
        work = job.work
        if work.problem is not None:
            raise RecipeError(work.problem)
        if work.flop:
            kind = work.device, work.precision
            found[kind] = found.get(kind, 0.0) + work.times * work.flop
    return found


def _seconds(costs: Mapping[tuple[str, Precision], float]) -> float:
    """What so many FLOP take here; 0 for what takes a moment anywhere."""
    if sum(costs.values()) <= MOMENT:
        return 0.0
    return sum(flop / speed(*kind) for kind, flop in costs.items())


def _time(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} seconds".replace(".0 ", " ")


def fetch_bytes(plan: Plan) -> int:
    """What a merge fetches from the hub before it reads."""
    return sum(source.snapshot.missing for source in plan.opened if source.snapshot is not None)
