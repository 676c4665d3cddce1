"""Right and wrong answers made of bfcl-eval's own possible answers, in the words of each prompt style."""

from __future__ import annotations

import json
from typing import Any

Calls = list[tuple[str, dict[str, str | Any]]]


def right_calls(entry: dict[str, Any], truth: list[dict[str, Any]]) -> Calls:
    """The first possible value of every argument; what may be left out is left out.

    Args:
        entry: the question, with its functions' parameters and without hints.
        truth: of every call its function, and of every argument its possible values, "" for none.
    """
    return [(name, _arguments(arguments, _schema(entry, name))) for call in truth for name, arguments in call.items()]


def wrong_calls(entry: dict[str, Any], truth: list[dict[str, Any]]) -> Calls:
    """The same calls of functions that are not there."""
    return [(f"not_{name}", arguments) for name, arguments in right_calls(entry, truth)]


def in_words(calls: Calls, entry: dict[str, Any], category: str) -> str:
    """As style bfcl asks for them: [f(a=1, b='x')]."""
    spell = {"simple_java": _quoted_java, "simple_javascript": json.dumps}.get(category, repr)
    told = [f"{name}({', '.join(f'{k}={spell(v)}' for k, v in _spelt(name, a, entry, category))})" for name, a in calls]
    return f"[{', '.join(told)}]"


def in_lines(calls: Calls, entry: dict[str, Any], category: str) -> str:
    """As style toolrl asks for them; Java's and JavaScript's values as text, which their hints ask for."""
    text = (lambda v: v if isinstance(v, str) else json.dumps(v)) if category == "simple_javascript" else lambda v: v
    lines = [
        json.dumps({"name": name, "parameters": {k: text(v) for k, v in _spelt(name, a, entry, category)}})
        for name, a in calls
    ]
    return "<think> So it is. </think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


def _schema(entry: dict[str, Any], name: str) -> dict[str, Any]:
    own = [one["parameters"] for one in entry["function"] if one["name"] == name]
    return own[0] if own else {"properties": {}}


def _arguments(options: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    required = schema.get("required", [])
    return {name: _first(values) for name, values in options.items() if name in required or not _optional(values)}


def _optional(values: Any) -> bool:
    return isinstance(values, list) and "" in values


def _first(values: Any) -> Any:
    """The first value that is one."""
    if not isinstance(values, list) or not values:
        return values
    return _inner(next((value for value in values if value != ""), ""))


def _inner(value: Any) -> Any:
    """A value whose own parts are options."""
    if isinstance(value, dict):
        return {name: _first(values) for name, values in value.items() if not _optional(values)}
    if isinstance(value, list):
        return [_inner(part) for part in value]
    return value


def _spelt(name: str, arguments: dict[str, Any], entry: dict[str, Any], category: str) -> list[tuple[str, Any]]:
    """Arguments with Java's values as its literals."""
    if category != "simple_java":
        return list(arguments.items())
    types = _schema(entry, name.removeprefix("not_"))["properties"]
    return [(key, _java(value, types.get(key, {"type": "any"}))) for key, value in arguments.items()]


def _java(value: Any, schema: dict[str, Any]) -> str:
    """A literal of Java."""
    inner = schema.get("items", {"type": "any"})
    if isinstance(value, str):
        return value
    match schema["type"]:
        case "long":
            return f"{value}L"
        case "float":
            return f"{value}f"
        case "ArrayList":
            return f"new ArrayList<Object>(Arrays.asList({', '.join(_element(one, inner) for one in value)}))"
        case "Array":
            return f"new Object[]{{{', '.join(_java(one, inner) for one in value)}}}"  # its parser keeps quotes
        case "HashMap":
            puts = " ".join(f"put({json.dumps(key)}, {_element(one, inner)});" for key, one in value.items())
            return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
        case "boolean":
            return str(value).lower()
    return str(value)


def _element(value: Any, schema: dict[str, Any]) -> str:
    """A literal within a collection, where texts have quotes."""
    return json.dumps(value) if isinstance(value, str | bool) else _java(value, schema)


def _quoted_java(literal: str) -> str:
    """A literal as an argument: texts in quotes, expressions as they are."""
    return literal if '"' in literal else json.dumps(literal)
