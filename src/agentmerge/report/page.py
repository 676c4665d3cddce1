"""One self-contained HTML file from a record: data, styles, scripts and charts in it, no network."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from agentmerge._version import __version__
from agentmerge.errors import SurveyError
from agentmerge.files.staging import replace_file
from agentmerge.record import MergeRecord

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.record import ProbeRecord

SCRIPTS = ("vendor/d3.min.js", "vendor/plot.min.js", "tables.js", "charts.js", "rounding.js", "page.js")


def write_page(record: ProbeRecord | MergeRecord, path: Path) -> None:
    """Write the page of a record that holds findings.

    Raises:
        OutputError: it can't be written there.
        SurveyError: the record holds no findings.
    """
    replace_file(path, page(record).encode())


def page(record: ProbeRecord | MergeRecord) -> str:
    """The page's HTML.

    Raises:
        SurveyError: the record holds no findings.
    """
    if record.findings is None:
        raise SurveyError("report: this record holds no findings", todo="Probe with --full, or merge with --report.")
    template = _environment().get_template("page.html.j2")
    return template.render(
        data=script_json(page_data(record)),
        headline=record.findings.headline,
        scripts=[_asset(name) for name in SCRIPTS],
        style=_asset("page.css"),
        version=__version__,
    )


def page_data(record: ProbeRecord | MergeRecord) -> dict[str, Any]:
    """What the page holds: the record without the raw answers, which only a later merge needs."""
    kind = "merge" if isinstance(record, MergeRecord) else "probe"
    return {"kind": kind, **record.model_dump(mode="json", exclude={"answers"})}


def rendered(template: str, **values: Any) -> str:
    """A page of another room in this one's style.

    Args:
        template: a file of this room's templates.
        values: what it shows, beside style and version.
    """
    return _environment().get_template(template).render(style=_asset("page.css"), version=__version__, **values)


def script_json(data: Any) -> str:
    """JSON that can stand in a script element: no `<` can end it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _environment() -> Environment:
    loader = PackageLoader("agentmerge.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined)


@cache
def _asset(name: str) -> str:
    folder = files("agentmerge.report")
    return folder.joinpath(*(name.split("/") if "/" in name else ("templates", name))).read_text(encoding="utf-8")
