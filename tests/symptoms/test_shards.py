"""Shards and indices that do not go together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentmerge.files.layout import INDEX
from tests.symptoms.conftest import BF16, CONFIG, EMBED, HEAD, MLP, NORM, Case, model, ram, same, trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.tensors import Array

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
LONG = 40_000
"""Rows of an embedding of which the pieces that are looked at beforehand leave most out."""


def put(case: Case, name: str, one: Mapping[str, Array], two: Mapping[str, Array], **listed: str | None) -> None:
    """A source in two shards; the index takes a tensor from the first one that has it, but for what is `listed`."""
    folder = case.folder / name
    folder.mkdir()
    save_file(dict(one), folder / ONE, {"format": "pt"})
    save_file(dict(two), folder / TWO, {"format": "pt"})
    weight_map = {**dict.fromkeys(two, TWO), **dict.fromkeys(one, ONE), **listed}
    (folder / INDEX).write_text(json.dumps({"weight_map": {t: f for t, f in weight_map.items() if f is not None}}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": len(one[EMBED])}))
    case.agents[name] = str(folder)


def halves(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The embedding and the MLP in both, the head and the rest in one each."""
    return {n: a for n, a in tensors.items() if n != HEAD}, {n: tensors[n] for n in (EMBED, MLP, HEAD)}


def test_a_tensor_in_two_shards_counts_once(case: Case) -> None:
    base = model()
    case.put("base", base)
    agents = [trained(base, seed) for seed in (1, 2)]
    case.put("code", agents[0])
    put(case, "tool", *halves(agents[1]))
    record = case.merge()
    same(case.result[MLP], ram(base[MLP], agents[0][MLP], agents[1][MLP]))
    assert any("the index takes them from another shard" in note for note in map(str, record.warnings))


def test_a_tensor_in_two_shards_with_other_numbers_is_refused_before_anything_is_read(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", trained(base, 1))
    one, two = halves(trained(base, 2))
    put(case, "tool", one, {**two, MLP: base[MLP]})
    case.refused_early("agent 'tool'", ONE, f"tensor '{MLP}' is also in {TWO}", "with another number at element")


@pytest.mark.parametrize("who", ["base", "tool"])
def test_a_tensor_that_the_index_leaves_out_is_not_said_to_lack(case: Case, who: str) -> None:
    base = model()
    for name, tensors in {"base": base, "code": trained(base, 1), "tool": trained(base, 2)}.items():
        if name == who:
            one, two = halves(tensors)
            put(case, name, one, {HEAD: two[HEAD]}, **{NORM: None})
        else:
            case.put(name, tensors)
    case.agents.pop("base", None)
    said = case.refused_early(who, INDEX, f"tensor '{NORM}' is in {ONE} and not in the index", "Repair the index")
    assert "inputs.missing" not in said
    assert "lacks" not in said


def test_one_number_that_differs_in_a_long_tensor_is_refused_when_it_is_read(case: Case) -> None:
    base = model(rows=LONG)
    case.put("base", base, {"vocab_size": LONG})
    case.put("code", trained(base, 1), {"vocab_size": LONG})
    one, two = halves(trained(base, 2))
    two[EMBED] = two[EMBED].copy()
    two[EMBED][600, 3] += np.asarray(1, BF16)
    put(case, "tool", one, two)
    assert case.check().ok
    case.refused(ONE, f"tensor '{EMBED}' is also in {TWO}", f"at element 7,203 of {LONG * 12:,}")
