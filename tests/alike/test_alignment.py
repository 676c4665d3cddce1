"""Tensors are matched by name; what does not match is listed, by agent, with what to do."""

from __future__ import annotations

import pytest

from agentmerge.alike.alignment import Alignment, align
from agentmerge.errors import AlignmentError, Role, Where
from agentmerge.tensors import TensorSpec


class Listed:
    """A source that is nothing but its list of tensors: alignment reads no data."""

    def __init__(self, *specs: TensorSpec) -> None:
        self.role, self.text = Role("somebody"), "somewhere"
        self.where = Where(self.role, self.text)
        self.specs = {spec.name: spec for spec in specs}


def spec(name: str, *shape: int, dtype: str = "BF16") -> TensorSpec:
    return TensorSpec(name, dtype, shape or (2, 3))


BASE = Listed(spec("b"), spec("a"), spec("ids", 4, dtype="I64"))


def aligned(
    agents: dict[str, Listed], *, missing: bool = False, extra: bool = False, excused: object = ()
) -> Alignment:
    return align(BASE, agents, missing_allowed=missing, extra_allowed=extra, excused=excused)  # type: ignore[arg-type]


def test_equal_lists_align_in_the_bases_order() -> None:
    agent = Listed(spec("ids", 4, dtype="I64"), spec("a"), spec("b"))
    found = aligned({"code": agent})
    assert [tensor.name for tensor in found.specs] == ["b", "a", "ids"]
    assert found.lacking == {}
    assert found.ignored == {}


@pytest.mark.parametrize("dtype", ["F32", "F16", "F64", "BF16"])
def test_float_dtypes_may_be_mixed(dtype: str) -> None:
    aligned({"code": Listed(spec("a", dtype=dtype), spec("b"), spec("ids", 4, dtype="I64"))})


def test_missing_tensors_are_listed_for_every_agent() -> None:
    agents = {"code": Listed(spec("a"), spec("ids", 4, dtype="I64")), "tool": Listed(spec("b"))}
    with pytest.raises(AlignmentError) as caught:
        aligned(agents)
    message = str(caught.value)
    assert "agent 'code' lacks 1: b\n" in message
    assert "agent 'tool' lacks 2: a, ids\n" in message
    assert "inputs.missing: base (--missing base)" in message


def test_missing_tensors_may_count_as_unchanged() -> None:
    found = aligned({"code": Listed(spec("a")), "tool": Listed(spec("a"), spec("b"))}, missing=True)
    assert found.lacking == {"b": frozenset({"code"}), "ids": frozenset({"code", "tool"})}


def test_an_agent_with_none_of_the_tensors_is_refused_even_so() -> None:
    with pytest.raises(
        AlignmentError, match=r"agent 'code' has none of the base's 3 tensors \(the base's first is b\)"
    ):
        aligned({"code": Listed(spec("x"))}, missing=True, extra=True)


def test_extra_tensors_are_listed() -> None:
    extra = [spec(f"v{i}") for i in range(7)]
    with pytest.raises(AlignmentError) as caught:
        aligned({"code": Listed(*BASE.specs.values(), *extra)})
    assert "agent 'code' has 7 more: v0, v1, v2, v3, v4 and 2 more" in str(caught.value)
    assert "inputs.extra: ignore (--extra ignore)" in str(caught.value)


def test_extra_tensors_may_be_left_out() -> None:
    found = aligned({"code": Listed(*BASE.specs.values(), spec("v"))}, extra=True)
    assert found.ignored == {"code": ("v",)}


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (2, 4)])
def test_another_shape_is_refused_with_both(shape: tuple[int, ...]) -> None:
    agent = Listed(spec("a", *shape), spec("b"), spec("ids", 4, dtype="I64"))
    with pytest.raises(AlignmentError) as caught:
        aligned({"code": agent})
    assert f"a: agent 'code' has shape {list(shape)}, base has [2, 3]" in str(caught.value)


@pytest.mark.parametrize(("name", "dtype"), [("a", "I64"), ("ids", "I32"), ("ids", "BF16"), ("a", "F8_E4M3")])
def test_another_kind_of_number_is_refused(name: str, dtype: str) -> None:
    changed = TensorSpec(name, dtype, BASE.specs[name].shape)
    with pytest.raises(AlignmentError, match=f"{name}: agent 'code' stores {dtype}, base stores"):
        aligned({"code": Listed(*{**BASE.specs, name: changed}.values())})


def test_a_problem_knows_its_source_and_tensor() -> None:
    with pytest.raises(AlignmentError) as caught:
        aligned({"code": Listed(spec("a", 9), spec("b"), spec("ids", 4, dtype="I64"))})
    (problem,) = caught.value.problems
    assert problem.where == Where(Role("somebody"), "somewhere", "a")
    assert problem.todo.startswith("Is it an agent of this base?")


def test_the_hint_of_an_agent_stands_at_the_end_of_its_message() -> None:
    agent = Listed(spec("a"), spec("ids", 4, dtype="I64"))
    with pytest.raises(AlignmentError) as caught:
        align(
            BASE,
            {"code": agent},
            missing_allowed=False,
            extra_allowed=False,
            hints={"code": "Why.", "tool": "No."},  # type: ignore[arg-type, dict-item]
        )
    assert str(caught.value).endswith("to count them as unchanged.\nWhy.")


def test_pairs_that_are_not_read_need_not_match() -> None:
    agents = {"code": Listed(spec("a", 9), spec("ids", 4, dtype="I64")), "tool": Listed(*BASE.specs.values())}
    found = aligned(agents, excused={("a", "code"), ("b", "code")})
    assert found.lacking == {"b": frozenset({"code"})}
    with pytest.raises(AlignmentError, match="agent 'code' has shape"):
        aligned(agents, excused={("a", "tool"), ("b", "code")})
