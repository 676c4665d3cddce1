"""What a merge costs in arithmetic, and whether that is too much to start unasked. Knows no method by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError

if TYPE_CHECKING:
    from agentmerge.engine.plan import Plan

LIMIT = 1e15
"""FLOP that processors do unasked; nearly three hours at SPEED."""
SPEED = 100e9
"""FLOP per second that the estimates of time take for processors."""


def check_cost(plan: Plan) -> None:
    """Raise RecipeError for work that this machine can't do, or that takes hours on processors unless allowed."""
    slow = _slow_cost(plan)
    if slow > LIMIT and not plan.recipe.run.allow_slow:
        raise RecipeError(
            f"method: '{plan.recipe.method.name}' takes {format_flop(slow)} without a GPU, about {_time(slow)}; more "
            f"than {format_flop(LIMIT)} is not started unasked. Run it where torch finds a CUDA device, choose cheaper "
            "settings (`agentmerge methods` lists them), or set run.allow_slow: true (--allow-slow)."
        )


def cost_line(plan: Plan) -> str:
    """For people, in one line; "" where no method computes much."""
    total, slow = plan.cost, _slow_cost(plan)
    if not total:
        return ""
    if not slow:
        return f"{format_flop(total)} on a GPU"
    wanted = "; wants a GPU, or --allow-slow" if slow > LIMIT else ""
    return f"{format_flop(total)}, about {_time(slow)}{wanted}"


def format_flop(flop: float) -> str:
    """In the largest fitting unit: "31.4 PFLOP"."""
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flop >= size:
            return f"{flop / size:.1f} {unit}"
    return f"{flop / 1e6:.1f} MFLOP"


def _slow_cost(plan: Plan) -> float:
    """FLOP that processors do; RecipeError for work that this machine can't do."""
    for task in plan.merged:
        if problem := plan.work(task).problem:
            raise RecipeError(problem)
    return sum(work.flop for task in plan.merged if (work := plan.work(task)).device == "cpu")


def _time(flop: float) -> str:
    seconds = flop / SPEED
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit} at {SPEED / 1e9:.0f} GFLOP/s"
    return f"{seconds:.1f} seconds at {SPEED / 1e9:.0f} GFLOP/s"
