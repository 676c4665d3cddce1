"""YAML 1.2 into plain data: what a recipe is written in. Where 1.1 reads another number, nothing is read.

In YAML 1.1, which most parsers of Python read, 010 is 8, 1:30 is 90, 1e-5 is text and yes, no, on and off are truth
values. In the core schema of 1.2 a word is a truth value only if it is true or false, 1:30 and dates are text, and a
number is what it looks like; 010, which would be 10, is refused.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from agentmerge.files.documents import only_one, parse_documents, refuse_digits, unique_keys

NULL = re.compile(r"~|null|Null|NULL|")
TRUTH = re.compile(r"true|True|TRUE|false|False|FALSE")
WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
NUMBER = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
UNCLEAR = re.compile(r"[-+]?0[0-9]+")
"""Whole numbers of which YAML 1.1 and 1.2 make different ones."""
RESOLVERS = (
    ("null", NULL, ["", *"~nN"]),
    ("bool", TRUTH, "tTfF"),
    ("int", WHOLE, "-+0123456789"),
    ("float", NUMBER, "-+.0123456789"),
    ("merge", re.compile("<<"), "<"),
)
"""Tags, what a plain scalar must match whole to be of one, and the first characters of such; the first one wins."""


def parse_core_yaml(text: str) -> Any:
    """One document of YAML 1.2; a key that stands twice is an error, not a silent overwrite.

    Raises:
        ValueError: it is no such document, or holds a number that is read in two ways.
    """
    try:
        documents = parse_documents(text, _Fast)
    except ValueError:  # to be told by the parser that quotes the line
        documents = parse_documents(text, _Exact)
    return only_one(documents)


class _Core:
    """The resolver and the constructors of numbers of YAML 1.2, for any of PyYAML's loaders."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_yaml_int(self: Any, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        refuse_digits(text, node)
        if UNCLEAR.fullmatch(text):
            _refuse(node, f"{text} is {int(text)} in YAML 1.2, and another number or text in 1.1; write it without 0")
        if not WHOLE.fullmatch(text):
            _refuse(node, f"'{text}' is no whole number")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)

    def construct_yaml_float(self: Any, node: yaml.ScalarNode) -> float:
        text = self.construct_scalar(node)
        if not NUMBER.fullmatch(text):
            _refuse(node, f"'{text}' is no number")
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _refuse(node: yaml.ScalarNode, found: str) -> None:
    raise yaml.constructor.ConstructorError(None, None, found, node.start_mark)


class _Exact(_Core, yaml.SafeLoader):
    """Slow, and quotes the line that it can't read."""


class _Fast(_Core, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """By libyaml, where PyYAML has it."""


for _tag, _pattern, _first in RESOLVERS:
    for _letter in _first:
        _found = f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern.pattern})\Z")
        _Core.yaml_implicit_resolvers.setdefault(_letter, []).append(_found)
for _loader in (_Exact, _Fast):
    _loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, unique_keys)
    _loader.add_constructor("tag:yaml.org,2002:int", _loader.construct_yaml_int)
    _loader.add_constructor("tag:yaml.org,2002:float", _loader.construct_yaml_float)
