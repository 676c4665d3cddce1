"""`agentmerge check`: every finding at once, from headers, configs and tokenizers."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import agentmerge
from agentmerge.cli import main
from agentmerge.engine.findings import CheckRecord, Finding
from agentmerge.errors import BASE, Problem, Where
from agentmerge.sources.folder import FolderWeights
from agentmerge.synth.write import synthesise
from tests.symptoms.conftest import BF16, NORM, Case, model, tokenizer, trained, words

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Block

WORDS = ("rope", "heads", "tokens", "eps", "lacks", "GPTQ", "no such folder")


def messy(case: Case) -> None:
    """A base and agents with something wrong in each."""
    base = model()
    case.put("base", base, {"num_attention_heads": 3, "rms_norm_eps": 1e-6}, **tokenizer(words(16)))
    config = {"rope_theta": 1e6, "rms_norm_eps": 1.0, "num_attention_heads": 9}
    case.put("code", trained(base, 1), config, **tokenizer(words(16)[::-1]))
    case.put("memory", {n: a for n, a in trained(base, 2).items() if n != NORM})
    case.put("tool", {**trained(base, 3), "x.qweight": base[NORM]})
    case.put("lost", base)
    shutil.rmtree(case.folder / "lost")


def test_all_findings_are_told_and_not_only_the_first(case: Case) -> None:
    messy(case)
    record = case.check()
    assert not record.ok
    kinds = {(f.severity, f.where, next((w for w in WORDS if w in f.found), "?")) for f in record.findings}
    assert kinds == {
        ("error", "agent 'code'", "rope"),
        ("error", "agent 'code'", "heads"),
        ("error", "agent 'code'", "tokens"),
        ("warning", "agent 'code'", "eps"),
        ("error", "agent 'memory'", "lacks"),
        ("error", "agent 'tool'", "GPTQ"),
        ("error", "agent 'lost'", "no such folder"),
    }
    assert [f.severity for f in record.findings] == ["error"] * 6 + ["warning"]


def test_each_finding_says_what_was_found_expected_and_what_to_do(case: Case) -> None:
    base = model()
    case.put("base", base)
    case.put("code", trained(base, 1), {"rope_theta": 1e6})
    (finding,) = [f for f in case.check().findings if f.severity == "error"]
    assert finding.where == "agent 'code'"
    assert finding.found.startswith("agent 'code' has rope theta 1000000.0")
    assert finding.expected == "the same"
    assert "--rope base" in finding.todo


def test_a_clean_set_has_no_findings_and_only_samples_are_read(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    base = model() | {f"model.layers.{i}.big": np.ones((3, 4099), BF16) for i in range(80)}
    case.put("base", base)
    case.put("code", trained(base, 1))
    seen, read = [], FolderWeights.read

    def counted(weights: FolderWeights, block: Block, out: Array | None = None) -> Array:
        seen.append(block.elements)
        return read(weights, block, out)

    monkeypatch.setattr(FolderWeights, "read", counted)
    record = case.check()
    assert record.ok
    assert record.findings == []
    assert len(seen) == 2 * 64
    assert max(seen) == 4096


def test_a_missing_base_is_told_beside_what_is_wrong_with_the_agents(case: Case) -> None:
    case.put("base", model())
    case.put("code", model())
    shutil.rmtree(case.folder / "base")
    (case.folder / "code" / "model.safetensors").write_bytes(b"")
    assert {(f.severity, f.where) for f in case.check().findings} == {("error", "base"), ("error", "agent 'code'")}


def test_the_same_source_twice_is_told(case: Case) -> None:
    case.put("base", model())
    path = case.put("code", trained(model(), 1))
    case.agents["tool"] = str(path)
    record = case.check()
    assert [f.where for f in record.findings] == ["recipe"]
    assert "are the same files" in record.findings[0].found


def test_rules_and_importance_are_checked_once_the_sources_are_right(case: Case) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1))
    record = case.check(rules=[{"tensors": "*.norn.*", "take": "base"}])
    assert [(f.severity, f.where) for f in record.findings] == [("warning", "recipe")]
    assert "matches no tensor" in record.findings[0].found
    assert "nothing to merge" in case.check(rules=[{"tensors": "*", "take": "base"}]).findings[0].found


def test_other_dtypes_are_a_note(case: Case) -> None:
    case.put("base", model())
    case.put("code", trained(model(dtype="F32"), 1))
    (finding,) = case.check().findings
    assert (finding.severity, finding.found) == ("note", "agent 'code' stores F32, the base BF16")


def test_a_finding_says_its_place_once() -> None:
    problem = Problem("x is odd: v1.2 is there;", "even", "Do it.", Where(BASE), named=True)
    assert str(problem) == "base: x is odd: v1.2 is there; expected even. Do it."
    finding = Finding.of(problem)
    assert (finding.where, finding.found, finding.expected, finding.todo) == (
        "base", "x is odd: v1.2 is there", "even", "Do it.",
    )  # fmt: skip


# the command


def run(monkeypatch, capsys, *args):
    monkeypatch.setattr("sys.argv", ["agentmerge", "check", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out, printed.err


def options(case: Case) -> list[str]:
    agents = [part for name, path in case.agents.items() for part in ("--agent", f"{name}={path}")]
    return ["--base", str(case.folder / "base"), *agents]


def test_the_command_prints_a_table_and_exits_with_2(case: Case, monkeypatch, capsys) -> None:
    messy(case)
    code, out, err = run(monkeypatch, capsys, *options(case))
    assert code == 2
    assert "severity" in out
    assert "A merge would stop here: " in out
    assert "Traceback" not in err
    code, out, _ = run(monkeypatch, capsys, *options(case), "--json")
    assert code == 2
    assert not CheckRecord.model_validate(json.loads(out)).ok


def test_the_command_exits_with_0_where_nothing_stops_a_merge(case: Case, monkeypatch, capsys) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1), {"rope_theta": 1e6})
    assert run(monkeypatch, capsys, *options(case))[0] == 2
    code, out, _ = run(monkeypatch, capsys, *options(case), "--rope", "base")
    assert code == 0
    assert "The sources fit together: 0 errors, 1 warning, 0 notes." in out
    assert json.loads(run(monkeypatch, capsys, *options(case), "--rope", "base", "--json")[1])["findings"]


def test_a_recipe_that_is_wrong_is_told_as_everywhere(monkeypatch, capsys) -> None:
    code, _, err = run(monkeypatch, capsys, "--base", "x")
    assert code == 2
    assert "RecipeError" in err


def test_the_synthetic_agents_fit_together(tmp_path) -> None:
    synthesise("tiny", tmp_path / "set", agents=2)
    recipe = {"base": str(tmp_path / "set/base"), "agents": {"code": str(tmp_path / "set/code")}, "method": "ram"}
    assert agentmerge.check(recipe).ok
