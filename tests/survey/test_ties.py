"""A head is compared with the embedding number by number, in any division and by the kernel too."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.survey.observe import observe
from agentmerge.survey.ties import HeadDiffers
from agentmerge.tensors import DTYPES, Array, Block, Stack, TensorSpec

SPECIAL = [0.0, -0.0, 1.0, np.nan, np.inf, -2.5, 6e-8, 65504.0]


def tie(embedding: Array, head: Array) -> Stack:
    spec = TensorSpec("model.embed_tokens.weight", "BF16", embedding.shape)
    return Stack(Block(spec, 0, embedding.size), embedding, (head,), ("head",))


def counted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> int:
    """By the kernel, where there is one, and by the definition."""
    question = HeadDiffers()
    fast = observe([question], stack)[question]
    with monkeypatch.context() as off:
        off.setattr(kernels, "choose", lambda *_: None)
        assert observe([question], stack)[question] == fast
    return int(fast)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_equal_bytes_are_equal_and_every_other_element_counts(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = np.resize(np.array(SPECIAL, np.float32), 5000).astype(DTYPES[dtype])
    head = embedding.copy()
    assert counted(tie(embedding, head), monkeypatch) == 0
    head[[1, 2, 4097]] = 7.0  # -0.0, 1.0, and -0.0 again
    head[8] = -0.0  # equal as a number, not in its bytes
    assert counted(tie(embedding, head), monkeypatch) == 4


def test_other_dtypes_are_compared_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = np.array([1.0, -0.0, 0.5, np.inf], np.float32).astype(DTYPES["BF16"])
    head = embedding.astype(np.float32)
    assert counted(tie(embedding, head), monkeypatch) == 0
    head[2] = np.nextafter(head[2], np.float32(1))  # between two numbers of bfloat16
    assert counted(tie(embedding, head), monkeypatch) == 1


def test_counts_of_blocks_add_up_and_survive_json() -> None:
    embedding = np.arange(6000, dtype=np.float32)
    stack, question = tie(embedding, embedding + (np.arange(6000, dtype=np.float32) % 3 == 0)), HeadDiffers()
    total = reduce(question.answers.combine, map(question.observe, stack.pieces(2048)))
    assert total == question.answers.decode(question.answers.encode(total)) == 2000
