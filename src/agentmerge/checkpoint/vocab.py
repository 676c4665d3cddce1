"""Vocabularies of different size: compare the tokens, then see every agent with the same rows. Knows no methods.

strict      every embedding and head has the base's number of rows
base-rows   the base's rows; a row that an agent lacks counts as unchanged by it, a row that only it has is left out
union       as many rows as the one agent that added tokens; the added rows are that agent's
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from agentmerge.checkpoint.views import Composed, Piece
from agentmerge.errors import AlignmentError, SourceError, shortened
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.checkpoint.reader import Opened

EMBEDDINGS = (
    "embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed_in.weight",
)  # fmt: skip
HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
ROWED = (*EMBEDDINGS, *HEADS, "lm_head.bias")

Mode = Literal["strict", "base-rows", "union"]


@dataclass(frozen=True)
class Vocabulary:
    """The sources with the same rows everywhere."""

    base: Opened
    agents: dict[str, Opened]
    rows: int | None
    """For the output's config where it differs from the base's."""
    grown_by: str | None
    """The agent that brings the added tokens, under union."""
    warnings: tuple[str, ...]


def aligned_vocabulary(base: Opened, agents: Mapping[str, Opened], mode: Mode) -> Vocabulary:
    """Check tokens and rows, and make the rows alike where the mode allows it.

    Args:
        base: under the names of the output.
        agents: by name, under the base's names.
        mode: see the file's head.

    Raises:
        AlignmentError: a token has another id, or the rows differ and the mode does not say what to do.
        SourceError: a tokenizer file is broken.
    """
    ours = token_ids(base.folder)
    warnings: list[str] = []
    for name, agent in agents.items():
        theirs = token_ids(agent.folder) if ours is not None else None
        if ours is not None and theirs is not None:
            _check_tokens(name, ours, theirs)
            extra = theirs.keys() - ours.keys()
            if extra and mode != "union":
                warnings.append(
                    f"agent '{name}' has {len(extra)} tokens that the base's tokenizer lacks: {_few(extra)}"
                )
    rows = {name: _rows(agent) for name, agent in agents.items()}
    if all(found.items() <= _rows(base).items() for found in rows.values()):
        return Vocabulary(base, dict(agents), None, None, tuple(warnings))
    if mode == "strict":
        raise AlignmentError(_different_rows(base, agents, ours))
    if mode == "base-rows":
        return Vocabulary(base, {n: _with_rows(a, base) for n, a in agents.items()}, None, None, tuple(warnings))
    return _union(base, agents, tuple(warnings))


def token_ids(folder: Path) -> dict[str, int] | None:
    """Every token with its id, from tokenizer.json, or from vocab.json and added_tokens.json; None without them.

    Raises:
        SourceError: a file is no valid JSON of its kind.
    """
    whole, plain, added = (folder / name for name in ("tokenizer.json", "vocab.json", "added_tokens.json"))
    if whole.exists():
        data = _json(whole)
        vocab = data.get("model", {}).get("vocab", {})
        ids = {entry[0]: i for i, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
        return ids | {token["content"]: int(token["id"]) for token in data.get("added_tokens") or ()}
    if plain.exists():
        return dict(_json(plain)) | (dict(_json(added)) if added.exists() else {})
    return None


def _check_tokens(name: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """A token under another id would mix unrelated rows, whatever the sizes."""
    moved = [token for token, i in ours.items() if theirs.get(token, i) != i]
    at = {i: token for token, i in ours.items()}
    replaced = [token for token, i in theirs.items() if token not in ours and i in at]
    if moved or replaced:
        example = moved[0] if moved else replaced[0]
        was = f"id {ours[example]}" if moved else f"the token {at[theirs[example]]!r}"
        raise AlignmentError(
            f"agent '{name}' has {len(moved) + len(replaced)} tokens under other ids than the base, for example "
            f"{example!r} at id {theirs[example]} (base: {was}). Rows of different tokens can't be merged; use an "
            "agent with the base's tokenizer, or take the embedding and head from one source with rules."
        )


def _rows(source: Opened) -> dict[str, int]:
    return {name: spec.shape[0] for name, spec in source.specs.items() if name.endswith(ROWED) and spec.shape}


def _different_rows(base: Opened, agents: Mapping[str, Opened], ours: Mapping[str, int] | None) -> str:
    lines = []
    for name, agent in agents.items():
        for tensor, rows in _rows(agent).items():
            if tensor in base.specs and rows != base.specs[tensor].shape[0]:
                theirs = token_ids(agent.folder)
                extra = theirs.keys() - ours.keys() if ours is not None and theirs is not None else ()
                more = f"; tokens the base lacks: {_few(extra)}" if extra else ""
                shape = list(agent.specs[tensor].shape)
                lines.append(
                    f"  {tensor}: agent '{name}' has shape {shape}, base has {list(base.specs[tensor].shape)}{more}"
                )
    return (
        "Vocabularies differ in their number of rows:\n" + "\n".join(lines) + "\n"
        "Pass --vocab base-rows (inputs.vocab) to keep the base's rows and count missing ones as unchanged, or "
        "--vocab union to keep the rows that one agent added, with its tokenizer."
    )


def _with_rows(agent: Opened, base: Opened) -> Opened:
    """The agent with the base's rows: its own as far as they go, then the base's."""
    specs, pieces = dict(agent.specs), {}
    for name, rows in _rows(agent).items():
        if name not in base.specs or base.specs[name].shape[0] == rows:
            continue
        wanted = base.specs[name]
        _check_width(name, agent, wanted)
        own = min(rows, wanted.shape[0]) * (wanted.elements // wanted.shape[0])
        specs[name] = TensorSpec(name, agent.specs[name].dtype, wanted.shape)
        pieces[name] = (Piece(agent, name, 0, own), Piece(base, name, own, wanted.elements - own))
    return Composed(agent, specs, pieces) if pieces else agent


def _union(base: Opened, agents: Mapping[str, Opened], warnings: tuple[str, ...]) -> Vocabulary:
    most = {name: max(_rows(agent).values(), default=0) for name, agent in agents.items()}
    now = max(_rows(base).values(), default=0)
    longer = [name for name, rows in most.items() if rows > now]
    if len(longer) > 1:
        raise AlignmentError(
            f"--vocab union: agents {shortened(longer)} all have more rows than the base ({now}); rows that several "
            "agents added have no common ancestor. Merge one of them with union first, or use --vocab base-rows."
        )
    if not longer:
        return Vocabulary(base, {n: _with_rows(a, base) for n, a in agents.items()}, None, None, warnings)
    donor = agents[longer[0]]
    specs, pieces = dict(base.specs), {}
    for name, rows in _rows(donor).items():
        if name in base.specs and rows > base.specs[name].shape[0]:
            _check_width(name, donor, base.specs[name])
            own, more = base.specs[name].elements, donor.specs[name].elements - base.specs[name].elements
            specs[name] = replace(base.specs[name], shape=donor.specs[name].shape)
            pieces[name] = (Piece(base, name, 0, own), Piece(donor, name, own, more))
    grown = Composed(base, specs, pieces, (f"{len(pieces)} tensors take added rows from agent '{longer[0]}'",))
    return Vocabulary(grown, {n: _with_rows(a, grown) for n, a in agents.items()}, most[longer[0]], longer[0], warnings)


def _check_width(name: str, source: Opened, wanted: TensorSpec) -> None:
    if source.specs[name].shape[1:] != wanted.shape[1:]:
        raise AlignmentError(
            f"{name}: {source.source} has shape {list(source.specs[name].shape)}, the base {list(wanted.shape)}; "
            "expected rows of the same width. Is it an agent of this base?"
        )


def _few(tokens: Any) -> str:
    return shortened([repr(token) for token in sorted(tokens)])


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: can't be read as JSON: {error}. Fetch the file again.") from None
    if not isinstance(data, dict):
        raise SourceError(f"{path}: expected a JSON object, found {type(data).__name__}. Fetch the file again.")
    return data
