"""Go on from a saved survey, if it is one of these very sources."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.errors import SurveyError, Where
from agentmerge.methods.base import before_merging
from agentmerge.record import ProbeRecord
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.statistic import Survey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.engine.plan import Plan
    from agentmerge.survey.integrity import IntegrityCounts


AGAIN = "Probe again."


def adopt_survey(plan: Plan) -> Survey:
    """The answers that the plan's methods ask for, from the file that `run.survey` names; empty without one.

    Integrity is not taken over: the map folds it again, and `check_fingerprint` compares.

    Raises:
        SurveyError: the file is of other sources, other agents or other tensors.
    """
    survey, path = Survey(), plan.recipe.run.survey
    if path is None:
        return survey
    saved = ProbeRecord.load(path)
    _check_sources(plan, saved, path)
    for method in plan.methods:
        for statistic in (method.overlap, *before_merging(method.ask(survey))):
            if statistic.key in saved.answers:
                with _readable(path):
                    survey.adopt(statistic, saved.answers[statistic.key])
    return survey


def check_fingerprint(plan: Plan, found: IntegrityCounts) -> None:
    """Raise SurveyError when the bytes just read are not those that the saved survey was made from."""
    path = plan.recipe.run.survey
    if path is None:
        return
    with _readable(path):
        saved = Integrity().answers.decode(ProbeRecord.load(path).answers[Integrity().key]["total"])
    bad = np.nonzero(saved.fingerprint != found.fingerprint)[0]
    if bad.size:
        names = ", ".join(("base", *plan.names)[i] for i in bad)
        raise SurveyError(
            f"{path}: the data of {names} changed since this survey was made", todo=AGAIN, where=Where(path=path)
        )


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turn what a hand-made file breaks into a SurveyError."""
    try:
        yield
    except SurveyError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"{path}: its answers are not what a probe writes ({error!r:.80})"
        raise SurveyError(found, todo=AGAIN, where=Where(path=path)) from error


def _check_sources(plan: Plan, saved: ProbeRecord, path: str) -> None:
    now, then = ({n: s for n, s in all_.items() if n != "onto"} for all_ in (plan.identities(), saved.sources))
    if ("keep" in now) != ("keep" in then):  # no answer that it changes is of the same question
        now, then = ({n: s for n, s in all_.items() if n != "keep"} for all_ in (now, then))
    where = Where(path=path)
    roles = {source.role.name: source.role for source in plan.sources.values() if source.role is not None}
    if then.keys() != now.keys():
        raise SurveyError(f"{path}: is of {sorted(then)}", expected=f"{sorted(now)}", todo=AGAIN, where=where)
    for name, identity in now.items():
        if then[name].get("files") != identity["files"]:
            raise SurveyError(
                f"{path}: {name!r} was {then[name].get('source')!r} when this survey was made and is "
                f"{identity['source']!r} now, or its files changed since",
                todo=AGAIN,
                where=replace(where, role=roles.get(name)),
            )
    if saved.scope != plan.scope_id:
        found = f"{path}: was made under rules that merge other tensors or agents"
        raise SurveyError(found, todo=AGAIN, where=where)
