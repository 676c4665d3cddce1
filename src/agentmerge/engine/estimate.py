"""What a plan takes: workers, blocks, memory, bytes and arithmetic, and whether that is too much to start unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError
from agentmerge.machine import available_cpus
from agentmerge.methods.arrays import speed
from agentmerge.tensors import DTYPES, LEAF, Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.engine.plan import Job, Plan
    from agentmerge.methods.base import Precision

BLOCK_SIZES = 1 << 20, 8 << 20
"""Least and most bytes of the base in a block that is chosen here; a block costs about 0.3 ms whatever its size."""
BUFFERS = 1 << 30
"""Bytes that the blocks of all workers may take together before smaller ones are chosen, down to the least."""
MOST_WORKERS = 16
RESIDENT = 170_000_000
"""Bytes of interpreter, numpy and compiled kernels beside the blocks, for the memory estimate."""
LIMIT = 600.0
"""Seconds of arithmetic that are not started unasked."""
MOMENT = 1e11
"""FLOP that take a moment on any machine: no second is spent on measuring how long."""


def workers(plan: Plan) -> int:
    """Threads."""
    wanted = plan.recipe.run.workers
    return min(available_cpus(), MOST_WORKERS) if wanted == "auto" else wanted


def block_size(plan: Plan) -> int:
    """Bytes of the base in one block."""
    wanted = plan.recipe.run.block_size
    if wanted != "auto":
        return int(wanted)
    least, most = BLOCK_SIZES
    width = max((DTYPES[spec.dtype].itemsize for spec in plan.sources["base"].specs.values()), default=1)
    return min(max(BUFFERS * width // (workers(plan) * _row_bytes(plan)), least), most)


def blocks(job: Job, size: int, start: int = 0, stop: int | None = None) -> Iterator[Block]:
    """The blocks of elements [start, stop) of a job's tensor, every inner edge a multiple of LEAF.

    Args:
        job: one whose method must see the tensor whole gets it whole; one that must see rows, whole rows.
        size: bytes of the base in one block.
        start: of the elements.
        stop: of the elements; None is the tensor's end.
    """
    stop = job.tensor.elements if stop is None else stop
    least = job.tensor.rows_and_leaves if job.work.reach == "row" else LEAF
    step = max(size // DTYPES[job.tensor.dtype].itemsize // least, 1) * least
    if job.whole:
        start, step = 0, job.tensor.elements
    for edge in range(start, stop, max(step, 1)):
        yield Block(job.tensor, edge, min(edge + step, stop))


def input_bytes(plan: Plan) -> int:
    """Bytes of one pass over everything that is merged."""
    return sum(job.bytes_read(job.tensor.elements) for job in plan.merged)


def output_bytes(plan: Plan) -> int:
    """Bytes of the weight files to be written."""
    return plan.layout.file_bytes


def memory_bytes(plan: Plan) -> int:
    """Resident memory to expect: each worker's largest block, and once the largest of what is done alone."""
    row, size = _row_bytes(plan), block_size(plan)
    alone = [
        (job.tensor.elements * _width(job, row) + job.work.bytes) * min(1 / job.work.share, workers(plan))
        for job in plan.jobs
        if job.work.share
    ]
    shared = [
        block.elements * _width(job, row) + job.work.bytes
        for job in plan.jobs
        if not job.work.share
        for block in blocks(job, size)
    ]
    return RESIDENT + workers(plan) * max(shared, default=0) + int(max(alone, default=0))


def _width(job: Job, row: int) -> int:
    """Bytes of an element: of a whole tensor, its result before the cast besides."""
    return row + 4 * job.whole


def _row_bytes(plan: Plan) -> int:
    """Bytes that one element takes at most in a worker's buffers: of every source, restored, and its result."""
    stacked = (plan.family.base, *plan.family.agents.values(), *plan.importance.values())
    read = sum(max((DTYPES[s.dtype].itemsize for s in source.specs.values()), default=0) for source in stacked)
    return 4 + read + 4 * len(plan.rounding)


def check_cost(plan: Plan) -> None:
    """Raise RecipeError for work that this machine can't do, or that takes long unless that is allowed."""
    costs = _costs(plan)
    if plan.recipe.run.allow_slow:
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
    costs = _costs(plan)
    if not costs:
        return ""
    seconds, where = _seconds(costs), " and ".join(sorted({"a GPU" if d == "cuda" else d.upper() for d, _ in costs}))
    time = f"about {_time(seconds)}" if seconds else "a moment"
    wanted = "; wants a GPU, or --allow-slow" if seconds > LIMIT else ""
    return f"{format_flop(sum(costs.values()))} on {where}, {time}{wanted}"


def format_flop(flop: float) -> str:
    """In the largest fitting unit: "31.4 PFLOP"."""
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flop >= size:
            return f"{flop / size:.1f} {unit}"
    return f"{flop / 1e6:.1f} MFLOP"


def _costs(plan: Plan) -> dict[tuple[str, Precision], float]:
    """FLOP by device and precision; RecipeError for work that this machine can't do."""
    found: dict[tuple[str, Precision], float] = {}
    for job in plan.merged:
        work = job.work
        if work.problem is not None:
            raise RecipeError(work.problem)
        if work.flop:
            found[work.device, work.precision] = found.get((work.device, work.precision), 0.0) + work.flop
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
