"""Servers: what is sent, how many at once, and what becomes of every way to fail."""

from __future__ import annotations

import http.client
import itertools
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.generators.http import Endpoint, _seconds, _wait
from agentmerge.eval.generators.openai import OpenAI, _Calls, served_model
from agentmerge.eval.request import Request, Response, Sampling
from tests.eval.serving import serving

GREEDY = Sampling(max_tokens=8)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr("agentmerge.eval.generators.http._wait", lambda attempt, after: 0.0)


def answers(server: OpenAI, requests: list[Request]) -> dict[str, Response]:
    found: dict[str, Response] = {}
    server.generate(requests, lambda request, response: found.update({request.text: response}))
    return found


def test_a_chat_and_a_text_are_sent_as_the_protocol_says(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    sampling = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, stop=("\n",), seed=7)
    with serving(lambda request: Response("yes", False, 3, 2)) as served:
        server = OpenAI(f"{served.url}/v1/", "m", fields={"repetition_penalty": 1.0})
        found = answers(server, [Request.chat("chat", sampling, system="s", sample=1), Request.raw("text", GREEDY)])
    assert found == {"s\nchat": Response("yes", False, 3, 2), "text": Response("yes", False, 3, 2)}
    bodies = {"messages" in body: body for body in served.bodies}
    common = {"model": "m", "repetition_penalty": 1.0}
    assert bodies[True] == common | {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "chat"}],
        "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["\n"], "seed": 8,
    }  # fmt: skip
    assert bodies[False] == common | {"prompt": "text", "max_tokens": 8, "temperature": 0.0, "top_p": 1.0}


def test_requests_are_under_way_together_but_no_more_than_asked_for():
    def slow(request):
        time.sleep(0.02)
        return Response(request.text, True)

    with serving(slow) as served:
        found = answers(OpenAI(served.url, "m", concurrency=4), [Request.raw(str(n), GREEDY) for n in range(24)])
    assert {text: response.text for text, response in found.items()} == {str(n): str(n) for n in range(24)}
    assert 2 <= served.most <= 4


def test_done_is_called_by_the_thread_that_asked():
    threads = set()
    with serving(lambda request: Response("", True)) as served:
        requests = [Request.raw(str(n), GREEDY) for n in range(8)]
        OpenAI(served.url, "m").generate(requests, lambda *_: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status):
    tries = itertools.count()
    with serving(lambda request: (status, "busy") if next(tries) < 2 else Response("at last", True)) as served:
        assert answers(OpenAI(served.url, "m"), [Request.raw("a", GREEDY)])["a"].text == "at last"
    assert len(served.asked) == 3


def test_what_does_not_pass_ends_the_run_after_all_tries():
    with serving(lambda request: (503, "overloaded")) as served, pytest.raises(EvalError) as caught:
        answers(OpenAI(served.url, "m", retries=2), [Request.raw("a", GREEDY)])
    assert len(served.asked) == 3
    assert "HTTP 503" in str(caught.value)
    assert "overloaded" in str(caught.value)
    assert "3 times in a row" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"choices": [', r"answers b'{\"choices\": \[', which is no JSON"),
        (b"<html>", "which is no JSON"),
        (b"", "no JSON"),
    ],
)
def test_a_body_that_is_no_json_is_tried_again_then_told_as_it_is(body, said):
    tries = itertools.count()
    with serving(lambda request: body if next(tries) < 2 else Response("at last", True)) as served:
        assert answers(OpenAI(served.url, "m"), [Request.raw("a", GREEDY)])["a"].text == "at last"
    with serving(lambda request: body) as served, pytest.raises(EvalError, match=f"{said}, 3 times in a row") as caught:
        answers(OpenAI(served.url, "m", retries=2), [Request.raw("a", GREEDY)])
    assert len(served.asked) == 3
    assert "can't be asked" not in str(caught.value)
    assert str(caught.value).count(served.url) == 1


def test_json_that_is_no_object_is_told_at_once_and_not_as_a_wrong_address():
    with serving(lambda request: b"[1]") as served, pytest.raises(EvalError) as caught:
        answers(OpenAI(served.url, "m"), [Request.raw("a", GREEDY)])
    assert len(served.asked) == 1
    assert f"{served.url}/v1/completions: answers b'[1]', expected a JSON object" in str(caught.value)
    assert "can't be asked" not in str(caught.value)


def test_half_a_body_is_tried_again_and_told_as_half(monkeypatch):
    def half(self):
        raise http.client.IncompleteRead(b'{"choi', 994)

    with serving(lambda request: Response("", True)) as served:
        monkeypatch.setattr(http.client.HTTPResponse, "read", half)
        with pytest.raises(EvalError, match="broke off its answer after 6 bytes, 2 times in a row"):
            answers(OpenAI(served.url, "m", retries=1), [Request.raw("a", GREEDY)])
    assert len(served.asked) == 2


def test_a_refusal_is_told_at_once_and_answers_under_way_are_kept():
    def some(request):
        return (401, "who are you") if request.text == "3" else Response("", True)

    kept: list[Request] = []
    requests = [Request.raw(str(n), GREEDY) for n in range(50)]
    with serving(some) as served, pytest.raises(EvalError, match=r"HTTP 401.*who are you.*OPENAI_API_KEY"):
        OpenAI(served.url, "m", concurrency=1).generate(requests, lambda request, _: kept.append(request))
    assert [request.text for request in kept] == ["0", "1", "2"]
    assert len(served.asked) == 4


def test_a_server_that_is_not_there_is_told():
    with serving(lambda request: Response("", True)) as served:
        pass
    with pytest.raises(EvalError, match="can't be reached"):
        answers(OpenAI(served.url, "m", retries=1), [Request.raw("a", GREEDY)])


@pytest.mark.parametrize("server", ["localhost", "localhost:8000", "http://[a", "http://a:b", "http://a b"])
def test_what_is_no_address_is_told_at_once(server):
    with pytest.raises(EvalError, match=r"can't be asked: .* expected an address such as http://localhost:8000"):
        served_model(server, "m")
    with pytest.raises(EvalError, match="can't be asked"):
        Endpoint(server, sleep=lambda seconds: pytest.fail("it was tried again")).post({})


def test_the_first_failure_is_told_before_others_are_stopped_by_it():
    told = []

    class Event(threading.Event):
        def set(self):
            told.append(calls._found.qsize())
            super().set()

    calls = _Calls(OpenAI("nowhere", "m"), [Request.raw("a", GREEDY)])
    calls.stop = Event()
    calls._work()
    assert told == [1]
    assert calls.stop.is_set()


@pytest.fixture
def waits(monkeypatch):
    """What is told of waiting, and how long each wait was; nobody sleeps."""
    told, slept = [], []
    monkeypatch.setattr("agentmerge.eval.generators.http._wait", _wait)
    monkeypatch.setattr(_Calls, "_sleep", lambda self, seconds: slept.append(seconds))
    return told, slept


def served_after(served, waits, retries=6):
    server = OpenAI(served.url, "m", retries=retries, waiting=lambda text, seconds: waits[0].append((text, seconds)))
    return answers(server, [Request.raw("a", GREEDY)])


def test_the_wait_that_a_server_asks_for_is_told_and_kept(waits):
    tries = itertools.count()
    busy = (429, "slow down", {"Retry-After": "90"})
    with serving(lambda request: busy if next(tries) < 2 else Response("at last", True)) as served:
        assert served_after(served, waits)["a"].text == "at last"
    told, slept = waits
    assert slept == [90, 90]
    assert [seconds for _, seconds in told] == [90, 90]
    assert "HTTP 429" in told[0][0]
    assert told[0][0].endswith('slow down"}}; the server asks to wait 90 s, then try 2 of 7')


def test_growing_waits_are_told_but_for_the_shortest(waits):
    with serving(lambda request: (500, "boom")) as served, pytest.raises(EvalError, match="7 times in a row"):
        served_after(served, waits)
    told, slept = waits
    assert [low <= seconds <= 2 * low for low, seconds in zip((0.5, 1, 2, 4, 8, 16), slept, strict=True)] == [True] * 6
    assert [seconds for _, seconds in told] == [seconds for seconds in slept if seconds >= 2]
    assert re.search(r"HTTP 500 .*boom.*; waiting \d+ s, then try 7 of 7$", told[-1][0])


@pytest.mark.parametrize("after", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT", "inf", "601", "tomorrow"])
def test_a_wait_beyond_the_limit_ends_the_run_and_says_so(waits, after):
    if after == "tomorrow":
        after = format_datetime(datetime.now(UTC) + timedelta(1))
    with serving(lambda request: (429, "quota", {"Retry-After": after})) as served, pytest.raises(EvalError) as caught:
        served_after(served, waits)
    assert len(served.asked) == 1
    assert waits == ([], [])
    assert re.search(
        r"HTTP 429 .*quota.*; the server asks to wait [\d,inf]+ s, expected at most 600 s\. Run the same",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7), ("-3", 0), ("nan", None), ("soon", None), (None, None), ("", None),
                          ("Wed, 21 Oct 1999 07:28:00 GMT", 0), ("Wed, 21 Oct 1999 07:28:00", 0)]
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(text, seconds):
    assert _seconds(text) == seconds


TOO_LONG = (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.")


def test_a_prompt_that_does_not_fit_ends_the_run_or_counts_as_answered_by_nothing():
    with serving(lambda request: TOO_LONG) as served:
        with pytest.raises(EvalError, match="--too-long empty"):
            answers(OpenAI(served.url, "m"), [Request.raw("a", GREEDY)])
        found = answers(OpenAI(served.url, "m", empty_if_too_long=True), [Request.raw("a", GREEDY)])
        ways = [OpenAI("", "m", empty_if_too_long=empty).identity["too_long"] for empty in (False, True)]
    assert found["a"] == Response.unasked()
    assert ways == ["stop", "empty"]


def test_another_bad_request_is_none_of_the_prompts_length():
    with (
        serving(lambda request: (400, "top_k is unknown")) as served,
        pytest.raises(EvalError, match="top_k is unknown"),
    ):
        answers(OpenAI(served.url, "m", empty_if_too_long=True), [Request.raw("a", GREEDY)])


def test_what_is_no_completion_is_told(monkeypatch):
    monkeypatch.setattr(Endpoint, "post", lambda self, body: {"detail": "hello"})
    with pytest.raises(EvalError, match="xpected a completion with choices"):
        answers(OpenAI("http://nowhere", "m"), [Request.raw("a", GREEDY)])


def message(**fields) -> dict:
    usage = {"prompt_tokens": 5, "completion_tokens": 9}
    return {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", **fields}}], "usage": usage}


@pytest.mark.parametrize(
    ("sent", "text", "aside", "empty"),
    [
        (message(content=None, reasoning_content="the answer is 4"), "", "reasoning_content", True),
        (message(content="", reasoning="the answer is 4"), "", "reasoning", True),
        (message(reasoning="4"), "", "reasoning", True),
        (message(content="\n\n", reasoning_content="4"), "\n\n", "reasoning_content", True),
        (message(content="4", reasoning_content="2 and 2"), "4", "", False),
        (message(content=None), "", "", True),
        (message(content=None, reasoning_content="", reasoning=None), "", "", True),
        (message(content=None, tool_calls=[{"id": "1"}]), "", "tool_calls", False),
        (message(content=None, reasoning="so I call", tool_calls=[{"id": "1"}]), "", "tool_calls", False),
        (message(content=None, tool_calls=[]), "", "", True),
    ],
)
def test_an_answer_without_text_says_where_the_server_put_it(sent, text, aside, empty):
    with serving(lambda request: sent) as served:
        found = answers(OpenAI(served.url, "m"), [Request.chat("a", GREEDY)])["a"]
    assert found == Response(text, True, 5, 9, aside=aside)
    assert found.empty == empty


@pytest.mark.parametrize("sent", [message(), message(content=[{"type": "text", "text": "4"}]), {"choices": []}])
def test_a_message_without_content_is_no_completion(sent):
    with serving(lambda request: sent) as served, pytest.raises(EvalError, match="xpected a completion with choices"):
        answers(OpenAI(served.url, "m"), [Request.chat("a", GREEDY)])


def test_a_server_is_asked_which_of_its_models_is_meant():
    with serving(lambda request: Response("", True), models=("one",)) as served:
        assert served_model(served.url, "/path/of/it") == "one"
    with serving(lambda request: Response("", True), models=("one", "two")) as served:
        assert served_model(served.url, "two") == "two"
        with pytest.raises(EvalError, match=r"serves one, two, not three.*--served-name"):
            served_model(served.url, "three")
