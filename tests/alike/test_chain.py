"""The chain makes sources alike step by step, keeps every error, and changes no value that it was given."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.alike.chain import STEPS, importance_alike, make_alike
from agentmerge.errors import BASE, AlignmentError, MergeError, Role, SourceError
from agentmerge.recipe import Inputs
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import CONFIG, random_base, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class Folders:
    """Sources in a folder, open until the test ends."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.stack = path, stack

    def put(self, name: str, tensors: dict[str, Any] | None = None, **config: Any) -> Source:
        tensors = random_base(0) if tensors is None else tensors
        folder = write_checkpoint(self.path / name, tensors, config={**CONFIG, **config})
        role = BASE if name == "base" else Role(name)
        return self.stack.enter_context(opened(role, str(folder)))

    def alike(self, base: Source, **agents: Source) -> Family:
        return make_alike(base, agents, Inputs())


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    with ExitStack() as stack:
        yield Folders(tmp_path, stack)


def test_the_steps_are_the_table_of_contents() -> None:
    assert [step.__name__ for step in STEPS] == [
        "compare_configs", "complete", "plain_numbers", "base_names", "like_the_base", "base_heads", "base_rows",
        "set_apart", "one_tokenizer", "compare_side_files", "aligned",
    ]  # fmt: skip
    assert all((step.__doc__ or "").strip() for step in STEPS)


def test_sources_that_are_alike_stay_as_they_are(folders: Folders) -> None:
    base, code = folders.put("base"), folders.put("code")
    family = folders.alike(base, code=code)
    assert (family.base, family.agents) == (base, {"code": code})
    assert (family.errors, family.notes, dict(family.hints)) == ((), (), {})


def test_every_error_is_kept_with_its_agent_and_the_others_go_on(folders: Folders) -> None:
    packed = {**random_base(0), "x.qweight": np.zeros(3, np.int32)}
    broken = folders.put("broken")
    (broken.folder.path / "config.json").write_text("{")
    family = folders.alike(
        folders.put("base", rope_theta=1e4),
        broken=broken,
        code=folders.put("code", rope_theta=1e6),
        good=folders.put("good", rope_theta=1e4),
        packed=folders.put("packed", packed),
    )
    whose = [(str(error.problems[0].where.role), type(error)) for error in family.errors]
    assert whose == [
        ("agent 'broken'", SourceError), ("agent 'code'", AlignmentError), ("agent 'packed'", SourceError)
    ]  # fmt: skip
    assert set(family.agents) == {"code", "good"}
    assert family.errors[1].problems[0].expected == "the same"


def test_an_error_of_the_base_ends_the_chain(folders: Folders) -> None:
    base = folders.put("base", {**random_base(0), "x.qweight": np.zeros(3, np.int32)})
    family = folders.alike(base, code=folders.put("code"))
    (error,) = family.errors
    assert error.problems[0].where.role == BASE
    assert "found GPTQ or AWQ weights" in str(error)
    assert dict(family.agents) == {}


def test_hints_are_kept_by_agent(folders: Folders) -> None:
    tensors = {f"module.{name}": array for name, array in random_base(0).items() if name != NORM}
    family = folders.alike(folders.put("base"), code=folders.put("code", tensors), good=folders.put("good"))
    assert list(family.hints) == ["code"]
    assert "agent 'code' seems to use another prefix" in family.hints["code"]


def test_what_is_said_of_a_view_knows_whose_it_is(folders: Folders) -> None:
    tensors = {f"module.{name}": array for name, array in random_base(0).items()}
    code = folders.put("code", tensors)
    family = folders.alike(folders.put("base"), code=code)
    (note,) = family.agents["code"].notes
    assert note.where == code.where
    assert code.notes == ()
    assert list(code.specs) != list(family.agents["code"].specs)


def test_a_tie_names_the_two_tensors_that_must_be_equal(folders: Folders) -> None:
    tensors = random_base(0)
    tensors[HEAD] = tensors[EMBED].copy()
    base = folders.put("base", tensors, tie_word_embeddings=True)
    family = folders.alike(base, code=folders.put("code", tensors, tie_word_embeddings=True))
    assert [(str(tie.source.role), tie.pair.embedding, tie.pair.head) for tie in family.ties] == [
        ("base", EMBED, HEAD), ("agent 'code'", EMBED, HEAD)
    ]  # fmt: skip
    assert family.tied == family.pair


def test_importance_follows_the_names_of_its_agent(folders: Folders, tmp_path: Path) -> None:
    family = folders.alike(folders.put("base"), code=folders.put("code"))
    drawn = {f"module.{n}": np.full(a.shape, 2, np.float32) for n, a in random_base(0).items()}
    role = Role("code", "importance")
    folder = write_checkpoint(tmp_path / "importance", drawn, config={})
    source = importance_alike(family, folders.stack.enter_context(opened(role, str(folder))))
    assert set(source.specs) == set(family.base.specs)
    assert (source.weights.read(Block(source.specs[NORM], 0, 5)) == 2).all()


def test_an_error_says_the_same_whoever_asks(folders: Folders) -> None:
    family = folders.alike(folders.put("base"), code=folders.put("code", num_attention_heads=3))
    assert family.errors == ()
    with pytest.raises(MergeError, match="agent 'x'"):
        raise AlignmentError("agent 'x' is odd").located(family.base.where)
    assert json.loads(json.dumps(family.base.identity.as_json()))["files"]
