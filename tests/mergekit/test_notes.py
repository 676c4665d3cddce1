"""What `convert` says is true of the file that it converts, and what changes no weight is no reason to refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import RecipeError
from agentmerge.testing import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.mergekit import Conversion

    Convert = Callable[..., Conversion]

HEAD = "base_model: b\nmodels: [{model: x, parameters: {weight: 1}}, {model: y, parameters: {weight: 1}}]\n"


def said(conversion: Conversion, words: str) -> bool:
    return any(words in warning for warning in conversion.warnings)


# what is drawn and kept


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties"])
@pytest.mark.parametrize(
    ("parameters", "drawn", "rescaled"),
    [
        ("{density: 0.5}", True, True),
        ("{density: 0.5, rescale: false}", True, False),
        ("{density: 1.0}", False, False),
        ("{density: 1.5}", False, False),
        ("{}", False, False),
        ("{density: 1.0, rescale: false}", False, False),
        ("{density: [{filter: mlp, value: 0.3}, {value: 1}]}", True, True),
    ],
)
def test_draws_and_rescaling_are_told_where_something_is_dropped(
    convert: Convert, method: str, parameters: str, *, drawn: bool, rescaled: bool
) -> None:
    conversion = convert(HEAD + f"merge_method: {method}\nparameters: {parameters}")
    assert said(conversion, "another generator") is drawn
    assert said(conversion, "divided by density") is rescaled


@pytest.mark.parametrize(("density", "told"), [("0.2", True), ("1.0", False), ("{filter: mlp, value: 0.2}", True)])
def test_what_ties_keeps_beyond_its_density_is_told_where_it_trims(
    convert: Convert, density: str, *, told: bool
) -> None:
    conversion = convert(HEAD + f"merge_method: ties\nparameters: {{density: {density}}}")
    assert said(conversion, "as large as the smallest kept one stay, too") is told
    assert not said(conversion, "one or two elements more")


# dtypes


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("dtype: bfloat16", True),
        ("dtype: float16", True),
        ("", True),
        ("dtype: float32", False),
        ("out_dtype: bfloat16", False),
        ("dtype: bfloat16\nout_dtype: bfloat16", False),
    ],
)
def test_ramplus_tl_writes_float32_in_mergekit_unless_out_dtype_says_otherwise(
    convert: Convert, lines: str, *, told: bool
) -> None:
    conversion = convert("merge_method: ramplus_tl\nbase_model: b\nmodels: [{model: x}, {model: y}]\n" + lines)
    assert said(conversion, "writes float32 all the same") is told
    assert said(conversion, "output.dtype: float32") is told


@pytest.mark.parametrize("method", ["ram", "linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"])
def test_other_methods_store_the_dtype_asked_for(convert: Convert, method: str) -> None:
    conversion = convert(HEAD + f"merge_method: {method}\ndtype: bfloat16")
    assert said(conversion, "also calculates in bfloat16")
    assert not said(conversion, "all the same")


@pytest.mark.parametrize(
    ("stored", "lines", "told"), [("f2", "", True), ("f4", "", False), ("f2", "dtype: float32", False)]
)
def test_models_of_several_dtypes_without_a_dtype(
    convert: Convert, tmp_path: Path, stored: str, lines: str, *, told: bool
) -> None:
    folders = {name: tmp_path / name for name in ("base", "x")}
    for name, folder in folders.items():
        write_checkpoint(folder, {"w": np.ones(4, stored if name == "x" else "f4")})
    text = f"merge_method: ram\nbase_model: {folders['base']}\nmodels: [{{model: {folders['x']}}}]\n{lines}"
    conversion = convert(text)
    assert said(conversion, "no dtype, and models of several") is told
    assert said(conversion, f"{folders['x']} F16") is told


# what changes no weight


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chat_template: auto", "chat_template: auto is left out, as it changes no weight"),
        ("chat_template: chatml", "chat_template.jinja"),
        (
            "chat_template: '{% for message in messages %}{{ message }}{% endfor %}'",
            "chat_template: a text is left out",
        ),
        ("tokenizer_source: union", "tokenizer_source: union is left out"),
        ("tokenizer: {source: union}", "`check` and `merge` compare the vocabularies and stop where they differ"),
        ("tokenizer: {}", "tokenizer.source: union is left out"),
        ("x-common: &common {weight: 1}", "x-common: left out, as mergekit ignores it"),
        ("parameters: {dtype: bfloat16}", "parameters.dtype: left out, as mergekit ignores it; it belongs outside"),
        ("parameters: {purpose: [a]}", "parameters.purpose: left out, as mergekit ignores it"),
        ("density: 0.5", "density: left out, as mergekit ignores it here; it belongs under `parameters`"),
        ("random_seed: 7", "random_seed: taken for `seed`"),
        ("random_seed: many", "random_seed: left out"),
    ],
)
def test_it_is_told_and_left_out(convert: Convert, line: str, words: str) -> None:
    plain, found = (convert(HEAD + f"merge_method: ties\n{more}").data for more in ("", line))
    assert said(convert(HEAD + f"merge_method: ties\n{line}"), words)
    assert {key: value for key, value in found.items() if key != "seed"} == plain
    assert found.get("seed") == (7 if line == "random_seed: 7" else None)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("wieghts: 1", "'weight', under `parameters`"),
        ("merge-methd: ties", "'merge_method'"),
        ("Tokenizer_sorce: base", "'tokenizer_source'"),
        ("parameters: {Densty: 1}", "'density'"),
        ("parameters: {lamda: 1}", "'lambda'"),
    ],
)
def test_a_misspelt_key_is_still_an_error(convert: Convert, text: str, meant: str) -> None:
    with pytest.raises(RecipeError) as raised:
        convert(HEAD + f"merge_method: ties\n{text}")
    assert f"Did you mean {meant}?" in str(raised.value)


@pytest.mark.parametrize(
    "base",
    ["{model: b}", "{model: {path: b}}", "{model: {path: b, revision: null}, lora: null}", "{model: b, lora: null}"],
)
def test_a_model_in_other_spellings(convert: Convert, base: str) -> None:
    text = "merge_method: ram\nmodels: [{model: {model: {path: x}}}]\nbase_model: "
    assert convert(text + base).data == convert(text + "b").data


@pytest.mark.parametrize("model", ["{model: b, lora: c}", "{model: {path: b}, lora: {path: c}}", "b+c"])
def test_an_adapter_as_base_is_refused_in_every_spelling(convert: Convert, model: str) -> None:
    with pytest.raises(RecipeError, match=r"base_model: found .*LoRA adapter"):
        convert(f"merge_method: ram\nmodels: [{{model: x}}]\nbase_model: {model}")


@pytest.mark.parametrize("model", ["{model: b, lora: c/x}", "{model: {path: b}, lora: {path: c/x}}", "b+c/x"])
def test_an_adapter_over_the_base_is_an_agent(convert: Convert, model: str) -> None:
    for head in ("merge_method: ram\nbase_model: b\nmodels:\n", "merge_method: linear\nmodels:\n- {model: b}\n"):
        found = convert(
            f"{head}- {{model: y}}\n- {{model: {model}}}\ntokenizer_source: {model}\nparameters: {{weight: 1}}"
        )
        assert (found.data["base"], found.data["inputs"]["tokenizer_from"]) == ("b", "x")
        source = found.data["agents"]["x"]
        assert (source if isinstance(source, str) else source["source"]) == "c/x"
        assert len([note for note in found.warnings if "b+c/x: the adapter is an agent by itself" in note]) == 1


def test_an_adapter_over_another_model_is_refused_with_that_model(convert: Convert) -> None:
    with pytest.raises(RecipeError, match=r"y\+c: found|found y\+c.* y is not the base \(b\)") as caught:
        convert("{merge_method: ram, base_model: b, models: [{model: x}, {model: y+c}]}")
    assert "merge_and_unload" in str(caught.value)
    with pytest.raises(RecipeError, match="a path or a hub id"):
        convert("{merge_method: ram, base_model: b, models: [{model: x}, {model: b+c+d}]}")


def test_one_module_is_the_same_as_none(convert: Convert) -> None:
    slices = """
    slices:
      - sources:
          - {model: b, layer_range: [0, 4]}
          - {model: x, layer_range: [0, 4]}
    parameters: {weight: 0.5}
    """
    head = "merge_method: task_arithmetic\nbase_model: b\n"
    plain = convert(head + slices.replace("\n    ", "\n"))
    for module in (slices, slices.replace("parameters: {weight: 0.5}", "")):
        outside = "" if module is slices else "parameters: {weight: 0.5}"
        assert convert(f"{head}modules:\n  default:{module}\n{outside}").data == plain.data


# several densities


def test_several_densities_are_those_of_the_agents(convert: Convert) -> None:
    text = """
    merge_method: {}
    base_model: b
    models:
      - {{model: b, parameters: {{density: 1, weight: 1}}}}
      - {{model: x, parameters: {{weight: 1, density: 0.5}}}}
      - {{model: y, parameters: {{weight: 1, density: [{{filter: mlp, value: 0.3}}, {{value: 0.5}}]}}}}
    """
    for method in ("ties", "dare_linear", "dare_ties"):
        data = convert(text.format(method)).data
        assert data["method"]["density"] == 0.5
        assert data["rules"] == [{"tensors": "*mlp*", "density": {"x": 0.5, "y": 0.3}}]


def test_without_rescale_each_agents_weight_takes_back_its_own_density(convert: Convert) -> None:
    text = """
    merge_method: dare_ties
    base_model: b
    models: [{model: x, parameters: {weight: 2, density: 0.5}}, {model: y, parameters: {weight: 1, density: 0.4}}]
    parameters: {rescale: false, normalize: %s}
    """
    data = convert(text % "false").data
    assert data["agents"] == {"x": "x", "y": {"source": "y", "weight": 0.4}}  # 2 * 0.5 and 1 * 0.4
    assert data["method"]["density"] == {"x": 0.5, "y": 0.4}
    assert data["method"]["then"]["scale"] == 1.0
    with pytest.raises(RecipeError, match=r"parameters\.rescale: found false beside several densities and normalize"):
        convert(text % "true")


# where the setting stands


def test_a_weight_in_another_proportion_is_one_line_at_its_place_with_the_layers(convert: Convert) -> None:
    text = """
    merge_method: task_arithmetic
    base_model: b
    models: [{model: x, parameters: {weight: 1}}, {model: y, parameters: {weight: [0.5, 1]}}]
    """
    with pytest.raises(RecipeError) as raised:
        convert(text, layers=12)
    assert len(raised.value.problems) == 1
    assert raised.value.problems[0].where.path == "models.1.parameters.weight"
    assert "1 : 0.5455 for layer 1; 1 : 0.5909 for layer 2" in str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ("{weight: 1, density: 0}", "models.0.parameters.density"),
        ("{density: 0.5}", "models.0.parameters.weight"),
        ("{weight: high}", "models.0.parameters.weight"),
        ("{weight: 1, density: [0.2, 0.8]}", "models.0.parameters.density"),
    ],
)
def test_the_key_is_where_the_setting_stands(convert: Convert, parameters: str, path: str) -> None:
    with pytest.raises(RecipeError) as raised:
        convert(f"{{merge_method: ties, base_model: b, models: [{{model: x, parameters: {parameters}}}]}}")
    assert [problem.where.path for problem in raised.value.problems] == [path]


def test_every_reason_is_told_in_one_run_whatever_it_is_about(convert: Convert) -> None:
    text = """
    merge_method: dare_ties
    base_model: b+lora
    dtype: int8
    tokenizer: {source: z, pad_to_multiple_of: 8}
    parameter: 1
    models:
      - {model: x, parameters: {weight: [1, 2], densty: 1}}
      - {model: y, parameters: {density: 0}}
      - {model: q, parameters: {weight: {filter: mlp}}}
    """
    with pytest.raises(RecipeError) as raised:
        convert(text)
    assert {problem.where.path for problem in raised.value.problems} == {
        *("base_model", "dtype", "tokenizer.source", "tokenizer.pad_to_multiple_of", "parameter"),
        *("models.0.parameters.weight", "models.0.parameters.densty", "models.1.parameters.weight"),
        *("models.1.parameters.density", "models.2.parameters.weight"),
    }


def test_a_method_that_is_not_here_hides_no_other_reason(convert: Convert) -> None:
    text = "merge_method: karcher\nbase_model: b\ndtype: int8\ntokenizer_source: z\nmodels: [{model: x, parameter: 1}]"
    with pytest.raises(RecipeError) as raised:
        convert(text)
    paths = [problem.where.path for problem in raised.value.problems]
    assert sorted(paths) == ["dtype", "merge_method", "models.0.parameter", "tokenizer_source"]


# layers and sources


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 4},
        {"n_layer": 4},
        {"llm_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 9}},
        {"thinker_config": {"text_config": {"num_hidden_layers": 4}, "audio_config": {"num_hidden_layers": 9}}},
    ],
    ids=str,
)
def test_the_number_of_layers_comes_from_any_model_that_is_here(
    convert: Convert, tmp_path: Path, config: dict[str, object]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = f"""
    merge_method: ties
    base_model: org/far
    models: [{{model: org/away, parameters: {{weight: 1}}}}, {{model: {tmp_path}, parameters: {{weight: 1}}}}]
    parameters: {{density: [0.25, 1.0]}}
    """
    globs = {rule["tensors"]: rule["density"] for rule in convert(text).data["rules"]}
    assert globs == {"*layers.1.*": 0.5, "*layers.2.*": 0.75, "*layers.3.*": 1.0}


def test_linear_without_a_base_reads_the_layers_of_its_first_model(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    text = f"""
    merge_method: linear
    models:
      - {{model: {tmp_path}, parameters: {{weight: [0.25, 0.5]}}}}
      - {{model: x, parameters: {{weight: [0.75, 0.5]}}}}
    """
    assert convert(text).data["rules"]


def test_sources_of_the_hub_are_fetched_to_where_they_are_looked_for(convert: Convert) -> None:
    models = "[{model: org/x@v1}, {model: hf-org/y@refs/pr/3}, {model: ./z}]"
    text = f"merge_method: ram\nbase_model: org/base\nmodels: {models}"
    conversion = convert(text)
    assert conversion.data["agents"] == {"x": "org/x@v1", "y": "hf-org/y@refs/pr/3", "z": "./z"}
    assert conversion.downloads == (
        "hf download org/base --local-dir org/base",
        "hf download org/x --revision v1 --local-dir org/x-v1",
        "hf download hf-org/y --revision refs/pr/3 --local-dir hf-org/y-refs-pr-3",
    )
    assert all(f"#   {command}" in conversion.yaml().splitlines() for command in conversion.downloads)


def test_what_the_commands_fetched_is_merged_under_its_id(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, step in {"org/base": 0.0, "org/x-v1": 1.0}.items():
        write_checkpoint(Path(folder), {"w": np.full(4, step, np.float32)}, config={})
    conversion = convert("merge_method: ram\nbase_model: org/base\nmodels: [{model: org/x@v1}]")
    assert conversion.downloads == ()
    record = agentmerge.merge(conversion.data, "out")
    assert read_checkpoint(Path("out"))["w"].tolist() == [1.0] * 4
    assert record.recipe["agents"]["x"]["source"] == "org/x@v1"


@pytest.mark.parametrize(
    ("weight", "told"),
    [("[0.25, 1]", True), ("[0.5, 0.5]", False), ("[{filter: mlp, value: [0, 1]}, {value: 1}]", False), ("0.5", False)],
)
def test_where_older_releases_had_another_value_it_is_told(convert: Convert, weight: str, *, told: bool) -> None:
    text = f"merge_method: ties\nbase_model: b\nmodels: [{{model: x, parameters: {{weight: {weight}}}}}]"
    assert said(convert(text + "\nparameters: {normalize: false}", 4), "0.0.6 and older") is told


def test_a_folder_that_is_here_keeps_its_name_whatever_revision_is_asked_of_it(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("org/x").mkdir(parents=True)
    conversion = convert("merge_method: ram\nbase_model: b\nmodels: [{model: org/x@main}]")
    assert (conversion.data["agents"], conversion.downloads) == ({"x": "org/x"}, ())
