"""How a model is shown functions and how its calls are read: in bfcl-eval's words, and in ToolRL's.

ToolRL's agents were trained on one prompt; it stands here word for word, because another one asks for another skill.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from agentmerge.eval.request import Message

if TYPE_CHECKING:
    from agentmerge.eval.request import JSON
    from agentmerge.eval.suites.bfcl_harness import Harness

TOOLRL_SYSTEM = """\
You are a helpful multi-turn dialogue assistant capable of leveraging tool calls to solve user tasks and provide \
structured chat responses.

**Available Tools**
In your response, you can use the following tools:
{tools}

**Steps for Each Turn**
1. **Think:** Recall relevant context and analyze the current user goal.
2. **Decide on Tool Usage:** If a tool is needed, specify the tool and its parameters.
3. **Respond Appropriately:** If a response is needed, generate one while maintaining consistency across user queries.

**Output Format**
```plaintext
<think> Your thoughts and reasoning </think>
<tool_call>
{{"name": "Tool name", "parameters": {{"Parameter name": "Parameter content", "... ...": "... ..."}}}}
{{"name": "... ...", "parameters": {{"... ...": "... ...", "... ...": "... ..."}}}}
...
</tool_call>
<response> AI's final response </response>
```

**Important Notes**
1. You must always include the `<think>` field to outline your reasoning. Provide at least one of `<tool_call>` or \
`<response>`. Decide whether to use `<tool_call>` (possibly multiple times), `<response>`, or both.
2. You can invoke multiple tool calls simultaneously in the `<tool_call>` fields. Each tool call should be a JSON \
object with a "name" field and an "parameters" field containing a dictionary of parameters. If no parameters are \
needed, leave the "parameters" field an empty dictionary.
3. Refer to the previous dialogue records in the history, including the user's queries, previous `<tool_call>`, \
`<response>`, and any tool feedback noted as `<obs>` (if exists).
"""
TOOLRL_ASK = """\
If there's no appropriate tools to apply or required parameters are missing, please directly inform me in your \
response without any tool call, or call the tool with the name as 'None'. Otherwise, you should use one or more \
necessary tool calls to complete the given task in this turn."""
BEGIN, END = "<tool_call>", "</tool_call>"


class Style(Protocol):
    """A way to ask for calls."""

    def messages(self, harness: Harness, entry: dict[str, JSON]) -> tuple[Message, ...]:
        """The chat of a question, whose functions have hints of their language."""
        ...

    def decode(self, harness: Harness, text: str, category: str) -> JSON:
        """The calls of an answer; raises where there are none to read, which is not the same as an empty list."""
        ...


class BfclStyle:
    """bfcl-eval's own: calls in the words of a programming language and nothing else, read by its parsers."""

    def messages(self, harness: Harness, entry: dict[str, JSON]) -> tuple[Message, ...]:
        """Its system message, then the question's."""
        return tuple(Message(one["role"], one["content"]) for one in harness.prompt(entry))

    def decode(self, harness: Harness, text: str, category: str) -> JSON:
        """What stands behind the thoughts, as its handler of Qwen does."""
        return harness.decode(text.split("</think>")[-1].lstrip("\n") if "</think>" in text else text, category)


class ToolRLStyle:
    """ToolRL's: thoughts, then a JSON object on a line for every call."""

    def messages(self, harness: Harness, entry: dict[str, JSON]) -> tuple[Message, ...]:
        """Functions in a system message, the question in a user message; a question's own system message is left out.

        ToolRL puts Qwen's template around the two by hand; here the model's own does it, which for Qwen is the same.
        """
        tools = "\n".join(_tool(number, one) for number, one in enumerate(entry["function"], 1))
        turns = []
        for message in entry["question"][0]:
            said = message["content"].strip()
            if message["role"] == "user":
                turns.append(f"<user> {said}\n{TOOLRL_ASK} </user>\n")
            elif message["role"] == "assistant":
                turns.append(f"\n{said}\n")
        told = f"**Dialogue Records History**\n{''.join(turns)}".strip()
        return Message("system", TOOLRL_SYSTEM.format(tools=tools)), Message("user", told)

    def decode(self, harness: Harness, text: str, category: str) -> JSON:
        """The lines of the last block that are calls; no block is no call, and so is the tool None."""
        if BEGIN not in text:
            return []
        lines = text.split(BEGIN)[-1].split(END)[0].strip().split("\n")
        return [call for call in map(_call, lines) if call is not None]


STYLES: dict[str, Style] = {"bfcl": BfclStyle(), "toolrl": ToolRLStyle()}


def _tool(number: int, function: dict[str, JSON]) -> str:
    """A function as ToolRL lists it: of its parameters the properties alone."""
    parameters = json.dumps(function["parameters"].get("properties", {}))
    return f"{number}. Name: {function['name']}\nDescription: {function['description']}\nParameters: {parameters}"


def _call(line: str) -> dict[str, JSON] | None:
    """The call of a line; None where it is none."""
    try:
        found = json.loads(line)
        name, parameters = found["name"], found["parameters"]
        return None if name.strip().lower() == "none" else {name: parameters}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
