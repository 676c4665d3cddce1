"""Agents as deltas and as PyTorch files: a merge of them has the bytes of a merge of safetensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentmerge.testing import assert_same_tensors
from tests.files.torch_files import put_torch
from tests.sources.test_delta import changes, put_delta
from tests.symptoms.conftest import BF16, EMBED, HEAD, MLP, Case, model, trained

if TYPE_CHECKING:
    from agentmerge.tensors import Array


def expected(case: Case) -> dict[str, Array]:
    """A merge of whole agents, and nothing of them left in the case."""
    case.put("base", model())
    for i, name in enumerate(("code", "tool"), 1):
        case.put(name, trained(model(), i))
    case.merge()
    found = case.result
    case.agents.clear()
    return found


def test_deltas_merge_like_the_agents_that_they_were_made_from(case: Case) -> None:
    whole = expected(case)
    for i, name in enumerate(("code", "tool"), 1):
        file = put_delta(case.folder / "deltas" / f"{name}.safetensors", changes(model(), trained(model(), i)), 1)
        case.agents[name] = str(file)
    record = case.merge()
    assert not record.warnings
    assert_same_tensors(case.result, whole)


def test_pytorch_files_merge_like_safetensors(case: Case) -> None:
    whole = expected(case)
    for i, name in enumerate(("code", "tool"), 1):
        case.agents[name] = str(
            put_torch(case.folder / "torch" / name / "pytorch_model.bin", trained(model(), i)).parent
        )
    put_torch(case.folder / "base" / "pytorch_model.bin", model())
    (case.folder / "base" / "model.safetensors").unlink()
    case.merge()
    assert_same_tensors(case.result, whole)
    assert not (case.out / "pytorch_model.bin").exists()


def test_a_delta_of_another_version_stops_the_merge(case: Case) -> None:
    case.put("base", model())
    file = put_delta(case.folder / "deltas" / "code.safetensors", changes(model(), trained(model(), 1)), 7)
    case.agents["code"] = str(file)
    case.refused_early("agent 'code'", "version 7 lies over version 6, and what is there is version 0")


def test_an_unsorted_delta_stops_the_merge_when_it_is_read(case: Case) -> None:
    case.put("base", model())
    pair = {f"{MLP}.indices": np.array([5, 2], np.int32), f"{MLP}.values": np.ones(2, BF16)}
    case.agents["code"] = str(put_delta(case.folder / "deltas" / "code.safetensors", pair, 1))
    case.refused("does not increase", "code.safetensors", MLP)


def test_a_delta_of_a_tied_embedding_moves_the_head_that_the_base_stores_twice(case: Case) -> None:
    base = model()
    base[HEAD] = base[EMBED]
    case.put("base", base, {"tie_word_embeddings": True})
    moved = trained({EMBED: base[EMBED]}, 1)
    case.agents["code"] = str(put_delta(case.folder / "deltas" / "code.safetensors", changes(base, moved), 1))
    case.merge()
    assert case.result[HEAD].tobytes() == case.result[EMBED].tobytes() != base[EMBED].tobytes()
