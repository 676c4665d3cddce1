"""Programs for tasks in CURE's format: ACC, UT, best of n by generated unit tests, and how good those are."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from agentmerge.errors import EvalError, Problem, Where
from agentmerge.eval.cure.prompts import ask_case, ask_program
from agentmerge.eval.cure.tasks import FIELDS, CodeTask
from agentmerge.eval.data import Hub, Need
from agentmerge.eval.execution.isolation import isolation
from agentmerge.eval.execution.pool import REFUSED, execute
from agentmerge.eval.execution.store import Verdicts
from agentmerge.eval.suite import Cell, Column, Item, Suite
from agentmerge.eval.suites.code_settings import SETS, CodeSettings
from agentmerge.eval.suites.code_trials import Asked
from agentmerge.eval.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.execution.trial import Verdict
    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Conversation

HARNESS = "nvidia-livecodebench"
INSTALL = "pip install numpy tqdm, then pip install --no-deps nvidia-livecodebench==26.3."
_METRICS = {
    "acc": "ACC",
    "ut": "UT",
    "case_acc": "generated tests, ACC",
    "case_ut": "generated tests, UT",
    "p_01": "wrong programs pass right generated tests",
    "p_00": "wrong programs pass wrong generated tests",
}


class Code(Suite):
    """A group for every set."""

    name = "code"
    domain = "code"
    settings_type = CodeSettings
    settings: CodeSettings

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"temperature": 1.0, "top_p": 0.95},
        "cure": {
            "temperature": 0.8,
            "top_p": 0.95,
            "top_k": 40,
            "programs": 16,
            "cases": 16,
            "best_of": ((4, 4), (16, 16)),
            "executor": "script",
        },
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._facts: dict[str, JSON] = {}

    def needs(self) -> list[Need]:
        """A file for every set."""
        return [
            Need(
                "code",
                f"{name}.json",
                f"CURE's data set {name} (Gen-Verse/{name}, test)" if name in SETS else "a file in CURE's format",
                FIELDS,
                Hub(f"Gen-Verse/{name}", file=f"test/{name}.json") if name in SETS else None,
            )
            for name in self.settings.sets
        ]

    def requires(self) -> list[Problem]:
        """Data, leave to run programs, the harness where it is used, and the isolation where one is asked for."""
        problems = self._missing() + self._impossible()
        if not self.given.allow_code_execution:
            problems.append(REFUSED)
        if self.settings.executor == "lcb" and not (find_spec("livecodebench") and find_spec("tqdm")):
            todo = f"{INSTALL} Or --set code.executor=script, which needs none."
            problems.append(Problem("code: the executor lcb needs nvidia-livecodebench", todo=todo))
        try:
            isolation(self.settings.isolation)
        except EvalError as error:
            problems += error.problems
        return problems

    def items(self) -> list[Item]:
        """The tasks of every set, in its order."""
        found = []
        for need, name in zip(self.needs(), self.settings.sets, strict=True):
            for number, row in enumerate(need.rows(self.given)):
                CodeTask.load(row, f"{need.name}: object {number + 1}")
                found.append(Item(f"{name}/{row.get('task_id', row.get('id', number))}", name, row))
        if len({item.id for item in found}) < len(found):
            found = [Item(f"{item.group}/{place}", item.group, item.data) for place, item in enumerate(found)]
        return found

    def converse(self, item: Item) -> Conversation:
        """All programs and unit tests at once; the output is the answers' texts."""
        settings, task = self.settings, CodeTask.load(item.data, item.id)
        sampling = settings.sampling(settings.stop)
        shown = task.examples[: settings.examples]
        programs = [ask_program(task.question, sampling, settings.prompt, k) for k in range(settings.programs)]
        cases = [ask_case(task.question, shown, sampling, settings.prompt, k) for k in range(settings.cases)]
        texts = [response.text for response in (yield [*programs, *cases])]
        return {"programs": texts[: len(programs)], "cases": texts[len(programs) :]}

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """Of one item; `score_all` runs the programs of many at a time."""
        return self.score_all([item], [output])[0]

    def score_all(self, items: Sequence[Item], outputs: Sequence[JSON]) -> list[dict[str, Cell]]:
        """Run every program on every test of its task; verdicts that the folder holds are not asked for again."""
        asked = [Asked(self.settings, item, output) for item, output in zip(items, outputs, strict=True)]
        with nullcontext() if self.folder is None else Verdicts(self.folder) as stored:
            done = execute(
                (trial for one in asked for trial in one.trials()),
                self.settings.limits,
                allowed=self.given.allow_code_execution,
                within=isolation(self.settings.isolation),
                known=stored.known if stored else None,
                done=stored.add if stored else None,
            )
            if stored:
                stored.tell(done.facts)
        self._facts = {"programs": _counts(done.verdicts), **(stored.facts if stored else done.facts)}
        return [one.cells(done.verdicts) for one in asked]

    @property
    def columns(self) -> tuple[Column, ...]:
        """ACC, UT and what generated tests give, of every set."""
        metrics = dict(islice(_METRICS.items(), 2))
        for place, (a, b) in enumerate(self.settings.best_of if self.settings.cases else ()):
            metrics |= {
                f"bon_{a}_{b}_{kind}": f"BoN{f' ({a}, {b})' * bool(place)} {_METRICS[kind]}"
                for kind in metrics
                if kind in ("acc", "ut")
            }
        programs = tuple(metrics)
        if self.settings.cases:
            metrics |= _METRICS
        return tuple(  # generated tests are another skill, and p_01 and p_00 are errors
            Column(f"{name.lower()}_{metric}", metric, f"{name} {label}", (name,), counts=metric in programs)
            for name in self.settings.sets
            for metric, label in metrics.items()
        )

    def versions(self) -> dict[str, str]:
        """livecodebench's, where it is used."""
        found = version_of(HARNESS) if self.settings.executor == "lcb" else None
        return {HARNESS: found} if found else {}

    def scoring(self) -> dict[str, JSON]:
        """What kept the programs in, and how they ended."""
        return self._facts

    def _missing(self) -> list[Problem]:
        """The sets that are not there, as one problem."""
        lacking = [need for need in self.needs() if need.path(self.given) is None]
        if len(lacking) < 2:
            return [problem for need in lacking for problem in need.missing(self.given)]
        folder, names = self.given.data_dir, ", ".join(need.name for need in lacking)
        return [
            Problem(
                f"code: {folder} holds no {names}" if folder else f"code: needs {names}, and no --data-dir is given",
                expected=f"JSON lines with {', '.join(FIELDS)}, from CURE's data sets of these names (Gen-Verse)",
                todo="Put them there, or run `agentmerge eval fetch code --data-dir DIR` where the hub can be reached, "
                "or take some sets alone by --set code.sets=A,B.",
            )
        ]

    def _impossible(self) -> list[Problem]:
        """Settings that do not fit each other."""
        settings, where = self.settings, Where(path="code.best_of")
        return [
            Problem(
                f"code.best_of: ({a}, {b}) of {settings.programs} programs and {settings.cases} unit tests",
                expected=f"1 to {settings.programs} and 1 to {settings.cases}",
                where=where,
            )
            for a, b in (settings.best_of if settings.cases else ())
            if not (1 <= a <= settings.programs and 1 <= b <= settings.cases)
        ]


def _counts(verdicts: Mapping[str, Verdict]) -> dict[str, int]:
    """How many trials came out how."""
    found = list(verdicts.values())
    return {verdict: found.count(verdict) for verdict in sorted(set(found))}
