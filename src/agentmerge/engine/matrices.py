"""What a plan tells of methods of whole matrices: globs of settings that fit nothing, and what is merged otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentmerge.errors import Note, Where, shortened
from agentmerge.methods.globs import glob_settings
from agentmerge.methods.layers import TakesMatrices, is_matrix
from agentmerge.methods.wrapper import chain_of
from agentmerge.sources.embeddings import EMBEDDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agentmerge.engine.plan import Job, Plan
    from agentmerge.methods.base import MergeMethod
    from agentmerge.methods.globs import Naming
    from agentmerge.tensors import TensorSpec

MUCH = 0.5
"""Share of the elements of matrices that is worth a warning."""
LISTED = 6
"""Kinds of tensors that a note names."""
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def matrix_notes(plan: Plan) -> list[Note]:
    """Notes of a recipe's method and of what its rules make of it."""
    return [*_idle_globs(plan), *_unclear(plan.merged), *_others(plan)]


def _idle_globs(plan: Plan) -> Iterator[Note]:
    """Globs of methods' settings, defaults aside, that fit no tensor of those that the setting is about."""
    specs = [job.tensor for job in plan.jobs]
    having: dict[tuple[str, str, Naming, str], list[MergeMethod]] = {}
    for method in (one for outer in plan.methods for one in chain_of(outer)):
        for setting, naming, globs in glob_settings(method):
            for glob in globs:
                having.setdefault((method.name, setting, naming, glob), []).append(method)
    for (name, setting, naming, glob), methods in having.items():
        fitting = [spec for spec in specs if naming.matches(spec.name, (glob,))]
        found, where = f"method '{name}': {setting}: {glob!r} matches", Where(path=f"method.{setting}")
        if not fitting:
            small = "; it is compared with names in small letters" if naming.lower and glob != glob.lower() else ""
            todo = f"The matrices are {_kinds(filter(is_matrix, specs))}."
            yield Note(f"{found} no tensor{small}.", todo, where=where)
        elif not any(_meant(method, naming)(spec) for method in methods for spec in fitting):
            yield Note(f"{found} only tensors that are not merged as matrices: {_kinds(fitting)}", where=where)


def _meant(method: MergeMethod, naming: Naming) -> Callable[[TensorSpec], bool]:
    """Whether a setting is about a tensor."""
    return getattr(method, naming.of) if naming.of else is_matrix


def _unclear(jobs: Iterable[Job]) -> Iterator[Note]:
    """Stacks of experts that are merged as [experts, out, in] although nothing tells that they are."""
    found = [job.tensor for job in jobs if _is_unclear(job)]
    if found:
        told = f"nothing tells whether {_kinds(found)} are [experts, out, in] or [experts, in, out]"
        yield Note(f"{told}: merged as the first", "Name them in `transposed` if they are the second.")


def _is_unclear(job: Job) -> bool:
    tensor = job.tensor
    assert job.method is not None
    if len(tensor.shape) != 3 or not _takes(job):
        return False
    if tensor.experts is not None and tensor.experts.turned is not None:
        return False
    said = [naming for one in chain_of(job.method) for naming in _turning(one)]
    return not any(naming.matches(tensor.name, globs) for naming, globs in said)


def _turning(method: MergeMethod) -> Iterator[tuple[Naming, tuple[str, ...]]]:
    return ((naming, globs) for setting, naming, globs in glob_settings(method) if setting == "transposed")


def _others(plan: Plan) -> Iterator[Note]:
    """The share of what might be matrices and is not merged as such, where it is large."""
    jobs = [job for job in plan.merged if is_matrix(job.tensor) and not _is_table(plan, job.name)]
    taken = [(job, took) for job in jobs if (took := _takes(job)) is not None]
    left = sorted((job for job, took in taken if not took), key=lambda job: -job.tensor.elements)
    share = sum(job.tensor.elements for job in left) / max(sum(job.tensor.elements for job, _ in taken), 1)
    if share > MUCH:
        names = ", ".join(dict.fromkeys(job.method.name for job in left if job.method is not None))
        found = f"{share:.0%} of the elements of matrices, embeddings and head aside, are not merged as matrices"
        found = f"{found} by {names}, but element by element: {_kinds(job.tensor for job in left)}."
        yield Note(found, "Name them in `linear` if they are layers.")


def _takes(job: Job) -> bool | None:
    """Whether a tensor is merged as whole matrices; None where its method merges none so."""
    chain = [] if job.method is None else chain_of(job.method)
    return next((one.takes_matrix(job.tensor) for one in chain if isinstance(one, TakesMatrices)), None)


def _is_table(plan: Plan, name: str) -> bool:
    """Whether a tensor is an embedding, or the head."""
    pair = plan.family.pair
    return bool(EMBEDDING.match(name)) or (pair is not None and name in (pair.embedding, pair.head))


def _kinds(specs: Iterable[TensorSpec]) -> str:
    """Names without their numbers, the first of many."""
    return shortened(dict.fromkeys(NUMBER.sub("*", spec.name) for spec in specs), LISTED) or "no matrices"
