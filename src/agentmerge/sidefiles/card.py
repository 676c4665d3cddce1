"""The model card of a merge: README.md with the hub's metadata. Knows what to say, not what was done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, StrictUndefined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_TEXT = """\
# {{ title }}

One checkpoint merged from {{ agents | length }} agent{{ "s" if agents | length > 1 }} of one base with
agentmerge, method `{{ method }}`. Everything that was done stands in
`merge_record.json`, with a recipe that replays it.

| | source |
|---|---|
| base | {{ base | cell }} |
{%- for name, source in agents.items() %}
| {{ name }} | {{ source | cell }} |
{%- endfor %}

```yaml
{{ recipe }}```
"""


def model_card(
    title: str,
    base: str,
    agents: Mapping[str, str],
    method: str,
    recipe: Mapping[str, Any],
    inherited: Mapping[str, Any],
) -> bytes:
    """README.md: metadata that the hub accepts, then the sources and the recipe.

    Args:
        title: of the page.
        base: the base's source as the user wrote it.
        agents: their sources by name.
        method: its name.
        recipe: plain data; written as YAML.
        inherited: metadata of the base's own card; its licence goes on.
    """
    metadata: dict[str, Any] = {
        key: inherited[key] for key in ("license", "license_name", "license_link", "language") if key in inherited
    }
    metadata |= {"library_name": "transformers", "tags": ["merge", "agentmerge"]}
    if parents := hub_ids([base, *agents.values()]):
        metadata |= {"base_model": parents, "base_model_relation": "merge"}
    environment = Environment(undefined=StrictUndefined, autoescape=False)
    environment.filters["cell"] = lambda text: f"`{text}`".replace("|", "\\|").replace("\n", " ")
    body = environment.from_string(_TEXT, {"title": title}).render(
        base=base, agents=agents, method=method, recipe=_yaml(recipe)
    )
    return f"---\n{_yaml(metadata)}---\n{body}\n".encode()


def hub_ids(sources: Sequence[str]) -> list[str]:
    """The sources that are ids on the hub, once each; a path that exists on this machine names no model there."""
    plain = [source.removeprefix("hf://").partition("@")[0] for source in sources if not Path(source).exists()]
    return list(dict.fromkeys(name for name in plain if HUB_ID.fullmatch(name)))


def card_metadata(folder: Path) -> dict[str, Any]:
    """The metadata block of a folder's README.md; {} when there is none or it is broken."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        found = re.match(r"---\r?\n(.*?)\r?\n---\s", text, re.DOTALL)
        data = yaml.safe_load(found[1]) if found else {}
    except (OSError, yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return data if isinstance(data, dict) else {}


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True)
