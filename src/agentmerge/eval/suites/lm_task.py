"""A task of lm-evaluation-harness on local data: its prompts, its stops, its filters and its metrics, and no model."""

from __future__ import annotations

import logging
from abc import abstractmethod
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from agentmerge.errors import EvalError, Problem
from agentmerge.eval.request import Message, Request
from agentmerge.eval.suite import Cell, Item, SampledSettings, Suite
from agentmerge.eval.versions import version_of
from agentmerge.machine import how_to_install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Conversation

SHOTS_SEED = 1234
"""By which lm-eval draws the examples before a question."""


class LmSettings(SampledSettings):
    """Of a suite that is a task of lm-eval."""

    chat: bool = True
    """Whether a prompt gets the model's chat template (lm-eval's --apply_chat_template)."""
    multiturn: bool = False
    """Whether the examples before a question are turns of that chat, or stand in its one message."""
    shots: int | None = Field(default=None, ge=0)
    """Examples before a question; null is the task's own number."""
    system: str = ""
    """A system message; "" is none."""


class LmTask(Suite):
    """What the suites of lm-eval have in common: a subclass names the task, its files and its metrics."""

    settings: LmSettings
    metrics: ClassVar[Mapping[str, str]]
    """Our name of each metric to lm-eval's, with the filter behind a comma where there are several."""

    @property
    @abstractmethod
    def recipe(self) -> str:
        """The task's YAML file under lm_eval/tasks."""

    @abstractmethod
    def splits(self, config: Mapping[str, Any]) -> dict[str, list[dict[str, JSON]]]:
        """The rows of each split that the task names."""

    def requires(self) -> list[Problem]:
        """lm-eval, then the data."""
        if find_spec("lm_eval") is None:
            return [Problem(f"{self.name}: lm-eval is not installed", todo=f"{how_to_install('eval')}.")]
        return super().requires()

    def items(self) -> list[Item]:
        """In lm-eval's order, each with its examples, which are drawn over all of them as lm-eval draws them."""
        self.task.set_fewshot_seed(seed=SHOTS_SEED)
        with quiet_datasets(import_module("datasets")):
            docs = self.task.eval_docs
        return [
            Item(self.id_of(number, doc), "", {"doc": dict(doc), "shots": self._shots(doc)})
            for number, doc in enumerate(docs)
        ]

    def converse(self, item: Item) -> Conversation:
        """One answer; the output is its text."""
        asked = self.prompt(item)
        stops = self.task.config.generation_kwargs.get("until") or ()
        wanted = self.settings.sampling([stops] if isinstance(stops, str) else stops)
        chat = None if isinstance(asked, str) else tuple(Message(one["role"], one["content"]) for one in asked)
        (response,) = yield [Request(chat, asked if chat is None else None, wanted)]
        return {"text": response.text}

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """By lm-eval's filters and metrics."""
        instance = import_module("lm_eval.api.instance").Instance(
            request_type="generate_until", doc=item.data["doc"], arguments=("", {}), idx=0, resps=[output["text"]]
        )
        found: dict[str, Any] = {}
        for own in self.task._filters:
            own.apply([instance])
            values = self.task.process_results(item.data["doc"], [instance.filtered_resps[own.name]])
            found |= {f"{name},{own.name}": value for name, value in values.items()}
        return {ours: _cell(found[theirs]) for ours, theirs in self.metrics.items()}

    def versions(self) -> dict[str, str]:
        """Of lm-eval."""
        version = version_of("lm-eval")
        return {"lm-eval": version} if version else {}

    def id_of(self, number: int, doc: Mapping[str, Any]) -> str:
        """What an item is known by."""
        return str(number)

    @cached_property
    def task(self) -> Any:
        """lm-eval's task over our rows.

        Raises:
            EvalError: lm-eval has no such task, or can't read the rows.
        """
        datasets = import_module("datasets")
        compile_once()
        with quiet_datasets(datasets), quiet_logger("lm_eval"):
            config = self._config()
            rows = self.splits(config)
            held = datasets.DatasetDict({name: datasets.Dataset.from_list(own) for name, own in rows.items()})
            config |= {"custom_dataset": lambda **_: held, "dataset_path": None, "dataset_name": None}
            return import_module("lm_eval.api.task").ConfigurableTask(config=config)

    def _config(self) -> dict[str, Any]:
        """The task's own configuration, with the number of examples that is wanted."""
        home = Path(str(import_module("lm_eval").__file__)).parent / "tasks"
        try:
            load = import_module("lm_eval.tasks._yaml_loader").load_yaml
            config: dict[str, Any] = deepcopy(load(home / self.recipe))
        except (ImportError, AttributeError, FileNotFoundError, TypeError) as error:
            todo = "pip install lm-eval==0.4.13, which this was made with."
            raise EvalError(
                f"{self.name}: lm-eval {version_of('lm-eval')} has no {self.recipe}: {error}", todo=todo
            ) from error
        for key in ("tag", "group", "task_list"):
            config.pop(key, None)
        if self.settings.shots is not None:
            config["num_fewshot"] = self.settings.shots
        if config.get("num_fewshot") == 0 and "fewshot_config" not in config:
            config |= {"fewshot_split": None, "training_split": None}
        return config

    def prompt(self, item: Item) -> JSON:
        """A question with its examples, as lm-eval puts them together: a text, or a chat."""
        drawing, self.task.sampler = self.task.sampler, _Drawn(item.data["shots"])
        try:
            return self.task.fewshot_context(
                item.data["doc"],
                num_fewshot=len(item.data["shots"]),
                system_instruction=self.settings.system or None,
                apply_chat_template=self.settings.chat,
                fewshot_as_multiturn=self.settings.chat and self.settings.multiturn,
                chat_template=(lambda chat, add_generation_prompt=True: chat) if self.settings.chat else None,
                gen_prefix=self.task.doc_to_prefix(item.data["doc"]),
            )
        finally:
            self.task.sampler = drawing

    def _shots(self, doc: Any) -> list[JSON]:
        """The examples before a question; never the question itself, where they come from the same split."""
        count = self.task.config.num_fewshot or 0
        same = self.task.fewshot_cfg.split == self.task.config.test_split
        return list(self.task.sampler.sample(n=count, eval_doc=doc if same else None)) if count else []


@dataclass(frozen=True)
class _Drawn:
    """lm-eval's sampler, once the examples of a question are drawn."""

    shots: list[JSON]

    def sample(self, n: int, eval_doc: Any = None) -> list[JSON]:
        return self.shots


def compile_once() -> None:
    """Let lm-eval keep its compiled templates: it compiles each again for every example of every question."""
    env = getattr(import_module("lm_eval.utils"), "env", None)
    if env is not None and "from_string" not in vars(env):
        env.from_string = cache(env.from_string)


@contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Errors alone of a library's logger."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def quiet_datasets(datasets: Any) -> Iterator[None]:
    """No bars of the library datasets."""
    shown = datasets.is_progress_bar_enabled() if hasattr(datasets, "is_progress_bar_enabled") else True
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _cell(value: Any) -> Cell:
    """A metric of one item: a number, or of each of its parts whether it is right."""
    if isinstance(value, list):
        return Cell(sum(map(float, value)) / len(value), len(value)) if value else Cell(0.0, 0.0)
    return Cell(float(value))


def rows_by_split(config: Mapping[str, Any], test: Sequence[Any], train: Sequence[Any] = ()) -> dict[str, list[Any]]:
    """Rows under the names that a task has for its splits."""
    found = {config["test_split"]: list(test)}
    shots = config.get("fewshot_split") or config.get("training_split")
    return found | ({shots: list(train)} if shots and train else {})
