"""What a packed delta holds, told from its file alone, and whether it lies over a base that is given."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

from agentmerge.deltas.alone import opened_alone
from agentmerge.deltas.record import DeltaRecord, DeltaTensor, FormCount
from agentmerge.errors import BASE, SourceError, SurveyError, Where, calling
from agentmerge.files.os_errors import source_errors
from agentmerge.hub.look import looked_at
from agentmerge.record import RECORD, MergeRecord, parsed
from agentmerge.sources.opening import opened
from agentmerge.sources.packed_format import FORMS, VERSION
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.sources.request import packed_of, requested
from agentmerge.sources.source import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agentmerge.deltas.alone import Agent
    from agentmerge.sources.hub import Snapshot
    from agentmerge.sources.packed_format import Manifest


def is_delta(text: str) -> bool:
    """Whether what a user wrote is a packed delta that lies here, or a folder with one."""
    with source_errors(text):
        return bool(packed_of(requested(None, text)))


def look(delta: str, base: str | None = None) -> DeltaRecord:
    """What a packed delta says of itself; its values are not read, and nothing large is fetched.

    Args:
        delta: a file that `pack` wrote, a folder with one, or a model on the hub that is one.
        base: what it shall lie over, compared as far as it is here: of a model on the hub that is not, the headers.

    Raises:
        SourceError: it is no packed delta, is damaged, or lies over another base; or one of the two can't be read.
    """
    with ExitStack() as stack:
        snapshot = looked_at(delta, stack, {})
        if snapshot is not None and snapshot.headers_only:
            stack.enter_context(calling(Folder(snapshot.folder, whole=True).called(delta)))
        agent = opened_alone(delta, _file(delta, snapshot), stack)
        compared = None if base is None else _compared(base, delta, snapshot, stack)
        manifest = agent.manifest
        found = held(manifest, agent.stored.identity.files[0].size)
        return DeltaRecord(
            delta=delta,
            commit=None if snapshot is None else snapshot.commit,
            version=VERSION,
            density=found["changed"] / max(found["elements"], 1),
            base=manifest.base,
            base_print=_sum(tensor.base_print or "0" for tensor in manifest.tensors),
            agent_print=_sum(tensor.print for tensor in manifest.tensors),
            sample=manifest.sample,
            over=base,
            compared=compared,
            same_as_base=[file.name for file in manifest.files if not file.kept],
            tensors=_tensors(manifest),
            merge=_merge_of(agent, delta),
            **found,
        )


def held(manifest: Manifest, nbytes: int) -> dict[str, Any]:
    """The fields of a `Held`.

    Args:
        manifest: of the file.
        nbytes: of the file.
    """
    tensors, alone = manifest.tensors, [tensor for tensor in manifest.tensors if tensor.base is None]
    unlike = unlike_of(manifest)
    return {
        "nbytes": nbytes,
        "full": sum(tensor.spec.nbytes for tensor in tensors),
        "elements": sum(tensor.spec.elements for tensor in tensors),
        "changed": sum(tensor.changed for tensor in tensors),
        "forms": {form: _form_count(manifest, form) for form in FORMS},
        "uncompared": sum(tensor.spec.elements for tensor in alone),
        "without_base": [tensor.name for tensor in alone],
        "unlike": list(unlike),
        "lacking": [name for name in manifest.lacking if name not in unlike.values()],
        "files": sorted(file.name for file in manifest.files if file.kept),
        "same_files": bool(manifest.weights),
    }


def unlike_of(manifest: Manifest) -> dict[str, str]:
    """The tensors that the base has in another dtype or shape: the agent's name of each, and the base's."""
    ours, common = set(manifest.lacking), by_common_name(manifest.lacking)
    alone = [tensor.name for tensor in manifest.tensors if tensor.base is None]
    named = {name: name if name in ours else common.get(common_name(name), "") for name in alone}
    return {name: base for name, base in named.items() if base}


def _form_count(manifest: Manifest, form: str) -> FormCount:
    found = [tensor for tensor in manifest.tensors if tensor.form == form]
    return FormCount(tensors=len(found), nbytes=sum(entry.nbytes for tensor in found for entry in tensor.entries))


def _file(delta: str, snapshot: Snapshot | None) -> Path:
    """The file of a packed delta.

    Raises:
        SourceError: there is none, or more than one.
    """
    found = packed_of(requested(None, delta, snapshot=snapshot))
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} packed deltas" if found else "no packed delta"
    todo = "Name one of its files." if found else "Check the path."
    raise SourceError(
        f"{delta}: {what}", expected="a file that `agentmerge pack` wrote", todo=todo, where=Where(source=delta)
    )


def _compared(base: str, delta: str, snapshot: Snapshot | None, stack: ExitStack) -> Literal["numbers", "headers"]:
    """Open a delta over a base; what of the base was compared.

    Raises:
        SourceError: it lies over another one.
    """
    below = stack.enter_context(opened(BASE, base, snapshot=looked_at(base, stack, {})))
    stack.enter_context(opened(None, delta, below, snapshot=snapshot))
    return "headers" if below.snapshot is not None and below.snapshot.headers_only else "numbers"


def _tensors(manifest: Manifest) -> list[DeltaTensor]:
    return [
        DeltaTensor(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=list(tensor.shape),
            form=tensor.form,
            elements=tensor.spec.elements,
            changed=tensor.changed,
            nbytes=sum(entry.nbytes for entry in tensor.entries),
        )
        for tensor in manifest.tensors
    ]


def _merge_of(agent: Agent, delta: str) -> MergeRecord | None:
    """The record of a merge that was packed; None of any other agent, and where the file is not what we write."""
    if RECORD not in (file.name for file in agent.manifest.files if file.kept):
        return None
    with suppress(SurveyError):
        return parsed(MergeRecord, agent.file(RECORD), f"{delta}: {RECORD}")
    return None


def _sum(prints: Iterable[str]) -> str:
    """Fingerprints of tensors as one: they add up."""
    return f"{sum(int(one, 16) for one in prints) % 2**64:016x}"
