"""Untidy checkpoints made alike: number formats, names, heads and vocabularies. Knows no methods and no tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentmerge.alike.configs import Difference, config_differences, file_differences, missing_code
from agentmerge.alike.donor import check_tokens, tokens_of_donor
from agentmerge.alike.heads import Pair, Tie, base_form, like_base, with_head
from agentmerge.alike.names import renamed_like
from agentmerge.alike.numbers import dequantised
from agentmerge.alike.packed import quantisation
from agentmerge.alike.rows import laid_like, rows_of
from agentmerge.alike.vocabulary import aligned_vocabulary
from agentmerge.errors import AlignmentError, MergeError
from agentmerge.sidefiles.copied import read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.alike.vocabulary import Tell
    from agentmerge.recipe import Inputs
    from agentmerge.sources.folder import Opened


@dataclass(frozen=True)
class Heads:
    """Where the output stores one tensor under two names."""

    embedding: str
    head: str


@dataclass(frozen=True)
class Prepared:
    """Sources under the base's names and shapes, and what that means for the output."""

    base: Opened
    agents: dict[str, Opened]
    pair: Pair | None
    """Embedding and head of the base."""
    tied: Heads | None
    """Where the output stores one tensor under two names."""
    ties: tuple[Tie, ...]
    """To be checked when the data is read."""
    inputs: Inputs
    config_changes: dict[str, Any] = field(default_factory=dict)
    """What the output's config says otherwise; None takes a key out."""
    tokenizer_from: str = "base"
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Why an agent's names were not matched with the base's."""

    def importance(self, source: Opened, who: str) -> Opened:
        """An agent's importance seen as the agent itself is: names, experts, head and rows."""
        source = renamed_like(self.base, source, who).checkpoint
        if self.pair is not None and self.pair.head in self.base.specs and self.pair.embedding in source.specs:
            source = with_head(source, self.pair, who)
        return laid_like(source, self.base, zero=True)


def prepare(
    base: Opened,
    agents: Mapping[str, Opened],
    inputs: Inputs,
    *,
    reads: Callable[[str, str], bool] = lambda tensor, agent: True,
    tell: Tell | None = None,
) -> Prepared:
    """Bring every source into the base's form, or say why that can't be done.

    Args:
        base: as opened.
        agents: by name, as opened.
        inputs: what is allowed.
        reads: (tensor, agent): whether any task reads it.
        tell: is given every error of an agent, which is then left out; None raises the first.

    Raises:
        MergeError: the first thing that can't be made alike, of the base in any case.
    """
    return _Preparation(base, agents, inputs, reads, tell or _raise).run()


class _Preparation:
    """The steps in their order; each leaves out the agents that fail it."""

    def __init__(
        self,
        base: Opened,
        agents: Mapping[str, Opened],
        inputs: Inputs,
        reads: Callable[[str, str], bool],
        tell: Tell,
    ) -> None:
        self.opened, self.inputs, self.reads, self.tell = base, inputs, reads, tell
        self.base, self.agents = base, dict(agents)
        self.folders = {n: source.folder for n, source in {"base": base, **agents}.items()}
        self.config = read_config(base.folder)
        self.configs: dict[str, dict[str, Any]] = {}
        self.warnings: list[str] = []
        self.hints: list[str] = []
        self.changes: dict[str, Any] = {}

    def run(self) -> Prepared:
        """All steps."""
        self.configs = self._each(lambda name, agent: read_config(agent.folder))
        self._each(self._check_config)
        self._plain()
        self.agents = self._each(self._renamed)
        pair, tied, ties = self._headed()
        vocabulary = aligned_vocabulary(self.base, self.agents, self.inputs.vocab, self._drop, reads=self.reads)
        self.base, self.agents = vocabulary.base, vocabulary.agents
        self.warnings += vocabulary.warnings
        if vocabulary.rows is not None:
            self.changes["vocab_size"] = vocabulary.rows
        donor = self.inputs.tokenizer_from
        donor = vocabulary.grown_by if donor == "base" and vocabulary.grown_by is not None else donor
        self._check_rows()
        self._check_donor(donor)
        self._tell_files(donor)
        return Prepared(
            base=self.base,
            agents=self.agents,
            pair=pair,
            tied=tied,
            ties=ties,
            inputs=self.inputs,
            config_changes=self.changes,
            tokenizer_from=donor,
            warnings=tuple(dict.fromkeys(self.warnings)),
            hints=tuple(self.hints),
        )

    def _each(self, step: Callable[[str, Opened], Any]) -> dict[str, Any]:
        """A step for every agent; one that fails is told and left out."""
        found = {}
        for name, agent in list(self.agents.items()):
            try:
                found[name] = step(name, agent)
            except MergeError as error:
                self._drop(name, error)
        return found

    def _drop(self, name: str, error: MergeError) -> None:
        self.tell(name, error)
        self.agents.pop(name, None)

    def _check_config(self, name: str, agent: Opened) -> None:
        """Stop where rope or heads differ; warn of the rest. An agent stays in, so that more can be told of it."""
        for difference in config_differences(name, self.config, self.configs[name]):
            error = _as_error(difference, self.inputs)
            if error is not None:
                self.tell(name, error)
            else:
                self.warnings.append(difference.text)

    def _plain(self) -> None:
        """FP8 as bfloat16; the output is never quantised."""
        self.base = dequantised(self.opened, self.config)
        self.agents = self._each(lambda name, agent: dequantised(agent, self.configs[name]))
        if quantisation(self.config):
            self.changes |= {"quantization_config": None, "compression_config": None}
            self.warnings.append(
                "the base is FP8: the output is bfloat16 (or output.dtype), without scales and quantization_config"
                if self.base is not self.opened
                else "the base has plain weights and a quantization_config: the output is without the latter"
            )

    def _renamed(self, name: str, agent: Opened) -> Opened:
        inputs = self.inputs
        found = renamed_like(
            self.base, agent, f"agent '{name}'", missing=inputs.missing == "base", extra=inputs.extra == "ignore"
        )
        self.hints.append(found.hint)
        return found.checkpoint

    def _headed(self) -> tuple[Pair | None, Heads | None, tuple[Tie, ...]]:
        untie = self.inputs.untie
        self.base, pair, tied, ties = base_form(self.base, self.config, untie=untie)
        if pair is None:
            return None, None, ()

        def step(name: str, agent: Opened) -> Opened:
            nonlocal ties
            config = self.configs[name]
            found = like_base(agent, config, name, self.base, pair, tied=tied, untie=untie)
            ties += found.ties
            self.warnings += found.warnings
            return found.agent

        self.agents = self._each(step)
        if untie:
            self.changes["tie_word_embeddings"] = False
        return pair, Heads(pair.embedding, pair.head) if tied and pair.head in self.base.specs else None, ties

    def _check_rows(self) -> None:
        """Warn where the base's vocab_size is not its number of rows."""
        text = self.config.get("text_config")
        wanted = self.config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
        found = set(rows_of(self.opened).values())
        if isinstance(wanted, int) and found and wanted not in found:
            self.warnings.append(f"base: config.json has vocab_size {wanted}, its tensors have {max(found)} rows")

    def _check_donor(self, donor: str) -> None:
        """The output's tokenizer must fit the output's rows, and those of every agent."""
        if donor == "base" or donor not in self.folders:
            return
        ids = tokens_of_donor(donor, self.folders, max(rows_of(self.base).values(), default=0))
        if ids is not None:
            read = {n for n in self.agents if any(self.reads(tensor, n) for tensor in rows_of(self.base))}
            self._each(lambda name, _: check_tokens(name, self.folders, donor, ids) if name in read else None)

    def _tell_files(self, donor: str) -> None:
        base = self.folders["base"]
        for name in self.agents if donor in self.folders else ():  # a check goes on without a donor that is not there
            found = file_differences(name, base, self.folders[name], donor, self.folders[donor])
            self.warnings += [difference.text for difference in found]
        if lacking := missing_code(base, self.config):
            self.warnings.append(
                f"base: config.json needs {', '.join(lacking)} (auto_map), which {base} lacks: the output won't load "
                "before you put it there"
            )


def _as_error(difference: Difference, inputs: Inputs) -> MergeError | None:
    if difference.kind == "rope" and inputs.rope == "error":
        return AlignmentError(
            f"{difference.text}; expected the same. Their weights expect other positions: set inputs.rope: base "
            "(--rope base) to merge them all the same under the base's."
        )
    if difference.kind == "heads":
        return AlignmentError(
            f"{difference.text}; expected the same, or it is not an agent of this base. Correct its config.json."
        )
    return None


def _raise(name: str, error: MergeError) -> None:
    raise error
