"""The model card of a merge: README.md with the hub's metadata."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from agentmerge.files.documents import yaml_or_nothing
from agentmerge.sources.hub import hub_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def model_card(
    title: str,
    base: str,
    agents: Mapping[str, str],
    method: str,
    recipe: Mapping[str, Any],
    inherited: Mapping[str, Any],
    onto: str | None = None,
) -> bytes:
    """README.md: metadata that the hub accepts, then the sources and the recipe.

    Args:
        title: of the page.
        base: the base's source as the user wrote it.
        agents: their sources by name.
        method: its name.
        recipe: plain data; written as YAML.
        inherited: metadata of the card of the base, or of `onto`; its licence goes on.
        onto: the source of what the merge is put onto in the base's place; None is the base itself.
    """
    metadata: dict[str, Any] = {
        key: inherited[key] for key in ("license", "license_name", "license_link", "language") if key in inherited
    }
    metadata |= {"library_name": "transformers", "tags": ["merge", "agentmerge"]}
    models = {**({} if onto is None else {"onto": onto}), "base": base, **agents}
    if parents := hub_ids([*models.values()]):
        metadata |= {"base_model": parents, "base_model_relation": "merge"}
    rows = "\n".join(f"| {name} | {_cell(source)} |" for name, source in models.items())
    put = "" if onto is None else ", put onto another checkpoint,"
    return f"""\
---
{_yaml(metadata)}---
# {title}

One checkpoint merged from {len(agents)} agent{"s" if len(agents) > 1 else ""} of one base{put} with
agentmerge, method `{method}`. Everything that was done stands in
`merge_record.json`, with a recipe that replays it.

| | source |
|---|---|
{rows}

```yaml
{_yaml(recipe)}```
""".encode()


def hub_ids(sources: Sequence[str]) -> list[str]:
    """The sources that are ids on the hub, once each; a path that exists on this machine names no model there."""
    found = map(hub_model, sources)
    return list(dict.fromkeys(name for name in found if name is not None and hub_takes(name)))


def hub_takes(name: str) -> bool:
    """Whether the hub has such names: it refuses "--" and "..", ".git" at the end, and more than 96 characters."""
    from huggingface_hub.errors import HFValidationError  # late: it takes a while to import
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def card_metadata(folder: Path) -> dict[str, Any]:
    """The metadata block of a folder's README.md; {} when there is none or it is broken."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return {}
    return metadata_in(text)


def metadata_in(text: str) -> dict[str, Any]:
    """The metadata block of a card; {} when there is none or it is broken."""
    found = re.match(r"---\r?\n(.*?)\r?\n---\s", text, re.DOTALL)
    return yaml_or_nothing(found[1]) if found else {}


def _cell(source: str) -> str:
    """A path in a table, whatever it holds."""
    return f"`{source}`".replace("|", "\\|").replace("\n", " ")


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True)
