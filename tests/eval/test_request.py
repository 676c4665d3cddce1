"""A request is known by all that it says."""

from __future__ import annotations

import pytest

from agentmerge.eval.request import Message, Request, Sampling

GREEDY = Sampling(max_tokens=8)


def test_the_key_is_the_hash_of_its_canonical_json_and_never_changes():
    """Answers that were stored by an earlier version stay of use."""
    assert Request.chat("2+2?", GREEDY).key == "bc1836eff9c25e5a21fb1ea6ddf132b804d31acd6d2d33a8477ce400ee1cea2e"


def test_whatever_may_change_an_answer_changes_the_key():
    requests = [
        Request.chat("a", GREEDY),
        Request.raw("a", GREEDY),
        Request.chat("a", GREEDY, sample=1),
        Request.chat("a", GREEDY, system="s"),
        Request((Message("user", "s"), Message("user", "a")), None, GREEDY),
        *(Request.chat("a", GREEDY.model_copy(update=change)) for change in CHANGES),
    ]
    assert len({request.key for request in requests}) == len(requests)


CHANGES = ({"max_tokens": 9}, {"temperature": 0.5}, {"top_p": 0.9}, {"top_k": 5}, {"stop": ("x",)}, {"seed": 0})


@pytest.mark.parametrize("request_", [Request.chat("é\ud800", GREEDY, system="s", sample=2), Request.raw("a", GREEDY)])
def test_a_request_comes_back_from_plain_data(request_: Request):
    assert Request.load(request_.dump()) == request_


@pytest.mark.parametrize("both", [((), ""), (None, None)])
def test_a_request_has_messages_or_a_prompt(both):
    with pytest.raises(ValueError, match="exactly one"):
        Request(*both, GREEDY)


def test_samples_of_one_prompt_have_seeds_of_their_own():
    seeded = GREEDY.model_copy(update={"seed": 7})
    assert [Request.raw("a", seeded, sample=i).seed for i in range(3)] == [7, 8, 9]
    assert Request.raw("a", GREEDY, sample=2).seed is None
