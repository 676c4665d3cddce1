"""A merge put on the hub: checked before anything is made there, private unless asked, uploaded once."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

import agentmerge
from agentmerge.errors import MergeError, OutputError, RecipeError, SurveyError
from agentmerge.hub.aimed import refuse_source
from agentmerge.sources.hub import hub_id
from agentmerge.testing import random_base, write_checkpoint
from tests.hub.repo import READER, WRITER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from huggingface_hub import ModelCard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.testing import Sources
    from tests.hub.server import HubServer

pytestmark = [
    pytest.mark.usefixtures("unsynced"),
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # of huggingface_hub, about httpx
]
WEIGHTS = "model.safetensors"


@pytest.fixture
def merged(hub: HubServer, merge_of_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A merge of models on the hub; somebody who may write is logged in."""
    shutil.copytree(merge_of_models, tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", WRITER)
    return tmp_path / "out"


def refused(folder: Path, name: str = "ada/merge", kind: type[MergeError] = OutputError) -> str:
    with pytest.raises(kind) as caught:
        agentmerge.push(folder, name)
    return str(caught.value)


def written(hub: HubServer) -> list[str]:
    """What changed something on the hub, or tried to."""
    return [path for method, path, _ in hub.asked if method in ("POST", "PUT")]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("org/base", "the source of base (org/base)"),
        ("org/base@main", "the source of base (org/base)"),
        ("Org/Code", "the source of agent 'code' (org/code)"),
    ],
)
def test_a_push_never_replaces_what_the_merge_was_made_of(
    hub: HubServer, merged: Path, name: str, what: str, run: Callable[..., Any]
) -> None:
    said = refused(merged, name, RecipeError)
    assert f"{name}: {what} is of this repository, and its main would be this merge from then on" in said
    assert f"or to a new branch there: {name.split('@')[0]}@BRANCH." in said
    assert not hub.asked
    words = ["--base", "org/base", "--agent", "code=hf://org/code", "--out", "x", "--push", name, "--dry-run"]
    assert "would be this merge from then on" in run("merge", *words).err
    assert not hub.asked


def test_a_branch_of_the_bases_repository_that_no_source_names_may_be_meant(hub: HubServer, merged: Path) -> None:
    repo = hub.add("org/base")
    repo.commit({"README.md": b"base"})
    agentmerge.push(merged, "org/base@merged")
    assert repo.commits[repo.branches["main"]] == {"README.md": b"base"}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("org/base@v2", "org/base@v2"),
        ("org/base@v2", "org/base"),
        ("/home/ada/hub/models--org--base--x/snapshots/abc", "org/base--x"),
    ],
)
def test_a_source_is_known_by_its_branch_and_in_the_hubs_cache(text: str, target: str) -> None:
    model = hub_id(target)
    assert model is not None
    with pytest.raises(RecipeError, match="a repository of the merge's own"):
        refuse_source(model, {text: "the source of base"})
    refuse_source(replace(model, revision="v3"), {text: "the source of base"})


def test_folders_that_the_card_names_are_no_target_either(hub: HubServer, merged: Path) -> None:
    path = merged / "merge_record.json"
    path.write_text(path.read_text().replace("org/tool", "/models/tool"))
    assert "a base_model of README.md (org/tool)" in refused(merged, "org/tool", RecipeError)
    assert not hub.asked


def test_a_merge_is_pushed_whole_and_private(hub: HubServer, merged: Path) -> None:
    (merged / ".cache").mkdir()
    (merged / ".cache" / "x.json").write_text("{}")
    record = agentmerge.push(merged, "ada/merge")
    repo = hub.repos["ada/merge"]
    assert repo.private
    assert (record.private, record.commit, record.url) == (True, repo.sha(1), f"{hub.url}/ada/merge")
    names = {"README.md", "config.json", "merge_record.json", WEIGHTS}
    assert set(repo.commits[-1]) == names | {".gitattributes"}
    assert all(repo.commits[-1][name] == (merged / name).read_bytes() for name in names)
    card = ModelCard(repo.commits[-1]["README.md"].decode()).data
    models = ["org/base", "org/code", "org/memory", "org/tool"]
    assert (card.base_model, card.license) == (models, "apache-2.0")
    assert (record.base_models, record.license, record.files) == (models, "apache-2.0", len(names))
    assert record.bytes == sum((merged / name).stat().st_size for name in names)
    assert record.warnings == []


def test_a_public_push_is_public_and_another_push_leaves_that(hub: HubServer, merged: Path) -> None:
    assert not agentmerge.push(merged, "ada/merge", public=True).private
    (merged / "NOTES.md").write_text("more")
    assert not agentmerge.push(merged, "ada/merge").private
    assert hub.repos["ada/merge"].commits[-1]["NOTES.md"] == b"more"


def test_a_private_repository_stays_so_and_who_wanted_it_public_is_told(hub: HubServer, merged: Path) -> None:
    assert agentmerge.push(merged, "ada/merge").warnings == []
    record = agentmerge.push(merged, "ada/merge", public=True)
    assert record.private
    assert "ada/merge was there and is private" in record.warnings[0]


def test_an_upload_that_failed_goes_on_without_what_is_there(hub: HubServer, merged: Path) -> None:
    hub.failing["/commit/main"] = 400
    assert "Run the same command again" in refused(merged)
    digest = sha256((merged / WEIGHTS).read_bytes()).hexdigest()
    assert written(hub).count(f"/put/{digest}") == 1
    hub.failing.clear()
    hub.asked.clear()
    agentmerge.push(merged, "ada/merge")
    assert f"/put/{digest}" not in written(hub)
    assert hub.repos["ada/merge"].commits[-1][WEIGHTS] == (merged / WEIGHTS).read_bytes()


def card(folder: Path, old: str, new: str) -> None:
    text = (folder / "README.md").read_text()
    assert old in text
    (folder / "README.md").write_text(text.replace(old, new))


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "card": (lambda out: (out / "README.md").unlink(), "no model card"),
    "metadata": (lambda out: (out / "README.md").write_text("# A model\n"), "no metadata that can be read"),
    "licence": (lambda out: card(out, "license: apache-2.0\n", ""), "license is missing, as the base's own card"),
    "named licence": (lambda out: card(out, "license: apache-2.0", "license: other"), "without a license_name"),
    "parents": (lambda out: card(out, "base_model:\n", "models:\n"), "base_model is missing"),
    "a parent": (lambda out: card(out, "- org/tool\n", ""), "base_model lacks org/tool"),
    "a name": (lambda out: card(out, "- org/tool\n", "- org/tool\n- a--b/c\n"), "base_model has a--b/c"),
    "weights": (lambda out: (out / WEIGHTS).unlink(), "no whole checkpoint"),
    "cut weights": (lambda out: cut(out / WEIGHTS), "no whole checkpoint"),
    "other weights": (lambda out: shutil.copy(out / "other", out / WEIGHTS), "not what its merge_record.json says"),
    "unfinished": (lambda out: (out / ".journal.jsonl").write_text(""), "an unfinished merge"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_finished_merge_with_its_card_changes_nothing_on_the_hub(
    hub: HubServer, merged: Path, what: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "other", random_base(1, {"w": (3,)}))
    shutil.copy(tmp_path / "other" / WEIGHTS, merged / "other")
    spoil, told = BROKEN[what]
    spoil(merged)
    assert told in refused(merged)
    assert not hub.asked
    assert "ada/merge" not in hub.repos


def test_all_that_the_card_lacks_is_told_at_once(hub: HubServer, merged: Path) -> None:
    (merged / "README.md").write_text("---\nlibrary_name: transformers\n---\n")
    said = refused(merged)
    assert "base_model is missing" in said
    assert "license is missing" in said
    assert not hub.asked


def test_a_folder_that_no_merge_wrote_is_not_pushed(hub: HubServer, tiny: Sources, tmp_path: Path) -> None:
    assert "not written by agentmerge" in refused(tiny.base, kind=SurveyError)
    assert "no such folder" in refused(tmp_path / "nothing", kind=SurveyError)
    assert not hub.asked


@pytest.mark.parametrize("name", ["merge", "ada/merge@", "a/b/c", "ada/a--b", "hf://ada/x", "./ada/x", ""])
def test_a_repository_is_an_owner_and_a_name(hub: HubServer, tmp_path: Path, name: str) -> None:
    assert "no name on the hub, which are OWNER/NAME" in refused(tmp_path, name, RecipeError)


def test_a_branch_is_made_from_main_and_main_stays(hub: HubServer, merged: Path) -> None:
    hub.add("ada/merge").commit({"README.md": b"mine"})
    record = agentmerge.push(merged, "ada/merge@try/rescale-0.1")
    repo = hub.repos["ada/merge"]
    assert (record.repository, record.revision, record.commit) == ("ada/merge", "try/rescale-0.1", repo.sha(1))
    assert record.url == f"{hub.url}/ada/merge/tree/try%2Frescale-0.1"
    assert repo.commits[repo.branches["main"]] == {"README.md": b"mine"}
    assert repo.commits[1][WEIGHTS] == (merged / WEIGHTS).read_bytes()
    assert "/api/models/ada/merge/branch/try/rescale-0.1" in written(hub)
    (merged / "NOTES.md").write_text("more")
    hub.asked.clear()
    assert agentmerge.push(merged, "ada/merge@try/rescale-0.1").commit == repo.sha(2)
    assert not [path for path in written(hub) if "/branch/" in path]
    assert agentmerge.push(merged, "ada/merge@main").revision == "main"
    assert repo.commits[repo.branches["main"]][WEIGHTS] == (merged / WEIGHTS).read_bytes()


def test_a_new_repository_may_begin_with_a_branch_which_is_a_source_then(hub: HubServer, merged: Path) -> None:
    agentmerge.push(merged, "ada/merge@v1")
    repo = hub.repos["ada/merge"]
    assert repo.private
    assert set(repo.commits[repo.branches["main"]]) == {".gitattributes"}
    agents = {"x": str(merged)}
    assert agentmerge.check({"base": "ada/merge@v1", "agents": agents, "method": "ram"}).ok
    assert not agentmerge.check({"base": "ada/merge", "agents": agents, "method": "ram"}).ok


@pytest.mark.parametrize(
    ("revision", "told"),
    [
        ("v1", "v1 is a tag, which stays where it is"),
        ("refs/pr/7", "the hub has no refs/pr/7 there"),
    ],
)
def test_a_revision_that_can_not_be_pushed_to_is_told_before_the_upload(
    hub: HubServer, merged: Path, revision: str, told: str
) -> None:
    hub.add("ada/merge", tags={"v1": 0}).commit({"README.md": b"mine"})
    assert f"ada/merge@{revision}: {told}" in refused(merged, f"ada/merge@{revision}")
    assert len(hub.repos["ada/merge"].commits) == 1
    assert not [path for path in written(hub) if path.startswith("/put/")]


def test_a_commit_is_no_place_for_a_push(hub: HubServer, tmp_path: Path) -> None:
    assert "a commit, which nothing can be added to" in refused(tmp_path, f"ada/merge@{'a' * 40}", RecipeError)


@pytest.mark.parametrize("branch", ["a..b", "x.lock", "a b", "/x", "x/", "-x", ".x", "a//b", "refs/heads/main"])
def test_what_git_calls_no_branch_is_told_before_anything_is_made(hub: HubServer, merged: Path, branch: str) -> None:
    refused(merged, f"ada/typo@{branch}", RecipeError)
    assert "ada/typo" not in hub.repos


def test_a_pull_request_of_no_repository_makes_none(hub: HubServer, merged: Path) -> None:
    assert "ada/typo2@refs/pr/7: there is no such repository" in refused(merged, "ada/typo2@refs/pr/7")
    assert "ada/typo2" not in hub.repos


def test_a_pull_request_that_is_open_takes_a_push(hub: HubServer, merged: Path) -> None:
    repo = hub.add("ada/merge")
    repo.commit({"README.md": b"mine"})
    repo.branches["refs/pr/1"] = 0
    assert agentmerge.push(merged, "ada/merge@refs/pr/1").commit == repo.sha(repo.branches["refs/pr/1"])
    assert repo.branches["main"] == 0


def test_weights_of_before_beside_those_of_the_merge_are_a_warning(hub: HubServer, merged: Path) -> None:
    old = {"model-00001-of-00001.safetensors": b"", "model.safetensors.index.json": b"{}", "onnx/x.bin": b""}
    hub.add("ada/merge", private=True).commit({**old, WEIGHTS: b""})
    (warning,) = agentmerge.push(merged, "ada/merge").warnings
    assert "ada/merge: other weights lie there beside those of this merge: model-00001-of-00001" in warning
    assert "onnx" not in warning
    assert WEIGHTS not in warning.split()


def test_whoever_is_not_logged_in_is_told_how(hub: HubServer, merged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "ada/merge: not logged in to the hub. To upload, log in with `hf auth login`" in refused(merged)
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    assert "the hub does not accept the token (401)" in refused(merged)
    assert not written(hub)


def test_a_token_that_may_not_write_is_told_where_to_get_one(
    hub: HubServer, merged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    said = refused(merged, "org/merge")
    assert "org/merge: the hub lets ada not write there (403)" in said
    assert "Make a token with write access to org" in said
    assert "ada/merge" in said
    assert "a name of your own" not in refused(merged, "ada/merge")
    assert set(written(hub)) == {"/api/repos/create"}
    assert "org/merge" not in hub.repos


def test_paths_of_this_machine_that_become_public_are_a_warning(
    hub: HubServer, tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agentmerge.merge(tiny.recipe("ram"), tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", WRITER)
    assert "no source of this merge was a model on the hub" in refused(tmp_path / "out")
    card(tmp_path / "out", "library_name", "license: mit\nbase_model: org/base\nlibrary_name")
    (warning,) = agentmerge.push(tmp_path / "out", "ada/merge", public=True).warnings
    assert str(tiny.base) in warning
    assert agentmerge.push(tmp_path / "out", "ada/own").warnings == []


def test_the_command_says_who_sees_it(hub: HubServer, merged: Path, run: Callable[..., Any]) -> None:
    ran = run("push", str(merged), "ada/merge")
    assert ran.code == 0
    assert f"to {hub.url}/ada/merge, which you and your organisation can see" in ran.out
    assert json.loads(run("push", str(merged), "ada/merge", "--json").out)["private"] is True
    assert (
        f"org/base (commit {json.loads((merged / 'merge_record.json').read_text())['sources']['base']['commit'][:12]})"
        in (run("inspect", str(merged)).out)
    )
    assert run("push", str(merged / "nothing"), "ada/merge").code == 2


def test_what_the_card_will_lack_is_told_before_the_merge_and_before_anything_is_fetched(
    hub: HubServer, on_hub: Sources, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", WRITER)
    words = ["merge", "--base", "org/base", "--agent", "code=org/code", "--out", "out", "--push", "ada/merge"]
    for more in ([], ["--dry-run"]):
        ran = run(*words, *more)
        assert ran.code == 2
        assert "out/README.md: license is missing, as the base's own card has none" in ran.err
        assert "nothing was merged" in ran.err
    assert "" not in hub.fetched(WEIGHTS)
    assert not (tmp_path / "out").exists()
    base = hub.repos["org/base"]
    base.commit({**base.commits[-1], "README.md": b"---\nlicense: mit\n---\n"})
    assert run(*words, "--dry-run").code == 0


@pytest.mark.slow
def test_a_merge_is_pushed_when_it_is_done(
    hub: HubServer, tiny: Sources, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["merge", "--base", str(tiny.base), "--agent", f"x={tiny.agents['code']}", "--out", "out", "--push"]
    ran = run(*words, "ada/merge")
    assert (ran.code, "not logged in" in ran.err) == (2, True)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    assert "a sweep makes several merges" in run(*words, "ada/merge", "--sweep", "rescale=0,1").err
    assert run(*words, "ada", "--dry-run").code == 2
    ran = run(*words, "ada/merge")
    assert ran.code == 2
    assert "license is missing" in ran.err
    assert "nothing was merged; merge without --push" in ran.err
    assert not (tmp_path / "out").exists()
    assert run(*words[:-1]).code == 0
    ran = run(*words, "ada/merge")
    assert ran.code == 2
    assert "the merge itself is complete in out; to push it: agentmerge push out ada/merge" in ran.err
    assert not hub.repos
    (tiny.base / "README.md").write_text("---\nlicense: mit\n---\n")
    hub.add("org/base", tiny.base)
    words[2] = "org/base"
    words[6] = "again"
    ran = run(*words, "ada/merge", "--public")
    assert ran.code == 0, ran.err
    assert "which everybody can see" in ran.out
    assert not hub.repos["ada/merge"].private
