"""What has no equal here is refused by its key, with what was found, why, and what comes nearest."""

import pytest

from agentmerge.errors import RecipeError

MODELS = "base_model: b\nmodels: [{model: x, parameters: {weight: 1}}, {model: y, parameters: {weight: 1}}]\n"
TIES = MODELS + "merge_method: ties\n"

PARTLY = """
base_model: b
models:
  - {model: x, parameters: {weight: 1}}
  - {model: y, parameters: {weight: [{filter: mlp, value: 0}, {value: 1}]}}
"""
TWO = "base_model: b\nmodels: [{model: x}, {model: y}]\n"


def refused(convert, text, layers=None):
    with pytest.raises(RecipeError) as found:
        convert(text, layers)
    assert "mergekit.yml" in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("method", "nearest"),
    [
        ("karcher", "`linear`"),
        ("arcee_fusion", "`ram`"),
        ("passthrough", "`take`"),
    ],
)
def test_a_method_that_is_not_here(convert, method, nearest):
    message = refused(convert, MODELS + f"merge_method: {method}")
    assert f"merge_method: found {method}" in message
    assert nearest in message.split("Nearest:")[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("merge_method: slerp\nbase_model: b\nmodels: [{model: x}]", "parameters.t: missing"),
        ("merge_method: slerp\nbase_model: b\nmodels: [{model: x}, {model: y}]\nparameters: {t: 0.5}", "of two models"),
        ("merge_method: nuslerp\nmodels: [{model: x}, {model: y}]\nparameters: {weight: 1}", "common ancestor"),
        (TWO + "merge_method: nuslerp", "models.0.parameters.weight: found nothing"),
        (
            TWO + "merge_method: multislerp\nparameters: {weight: 1, normalize_weights: false}",
            "normalize_weights: true",
        ),
        (PARTLY + "merge_method: multislerp", "nothing of y in some tensors"),
        (PARTLY + "merge_method: nuslerp", "nothing of y in some tensors"),
        (TWO + "merge_method: sce\nparameters: {select_topk: 0}", "nothing would be kept"),
        (TWO + "merge_method: nearswap\nparameters: {t: 0.1}", "of two models"),
        ("merge_method: nearswap\nbase_model: b\nmodels: [{model: x}]\nparameters: {t: 0}", "nothing would be merged"),
        ("merge_method: model_stock\nbase_model: b\nmodels: [{model: x}]", "expected two or more"),
        (TWO + "merge_method: breadcrumbs\nparameters: {weight: 1, gamma: 1}", "a share of 0 or more"),
        (TWO + "merge_method: della\nparameters: {weight: 1, density: 0.9}", "no probability"),
    ],
)
def test_what_a_method_of_mergekit_says_that_ours_can_not(convert, text, words):
    assert words in refused(convert, text)


def test_a_method_that_is_nowhere_gets_a_hint(convert):
    assert "Did you mean 'ties'?" in refused(convert, MODELS + "merge_method: tyes")


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("tokenizer_source: z/other", "tokenizer_source: found z/other", "neither the base nor one of the agents"),
        ("tokenizer: {source: base, tokens: {a: {source: x}}}", "tokenizer.tokens: found", "row by row"),
        ("tokenizer: {source: base, pad_to_multiple_of: 64}", "tokenizer.pad_to_multiple_of: found 64", "vocabulary"),
        ("tokenizer: base", "tokenizer: found base", "expected a mapping"),
        ("tokenizer_source: base\ntokenizer: {source: base}", "tokenizer: found", "Keep one"),
        ("dtype: int8", "dtype: found int8", "bfloat16"),
        ("out_dtype: fp8", "out_dtype: found fp8", "bfloat16"),
        ("modules: {text: {}}", "modules: found ['text']", "for each module"),
        ("input_model_parameters: {a: 1}", "input_model_parameters: found", "models.*.parameters"),
        ("merge_metod: x", "merge_metod: found x", "Did you mean 'merge_method'?"),
        ("parameters: {densty: 0.5}", "parameters.densty: found 0.5", "Did you mean 'density'?"),
        ("parameters: {density: high}", "parameters.density: found high", "a list of numbers"),
        ("parameters: {density: .nan}", "parameters.density: found nan", "a list of numbers"),
        ("parameters: {density: [0.5, high]}", "parameters.density: found [0.5, 'high']", "a list of numbers"),
        ("parameters: {density: [{filter: a}]}", "parameters.density: found", "{filter, value}"),
        ("parameters: {density: 0}", "parameters.density: found 0", "weight 0"),
        ("parameters: {density: 0.5, rescale: true}", "parameters.rescale: found true", "does not rescale"),
        ("parameters: [1]", "parameters: found [1]", "expected a mapping"),
    ],
)
def test_a_key_that_has_no_equal_here(convert, line, key, words):
    message = refused(convert, TIES + line)
    assert key in message
    assert words in message


def test_a_gradient_over_an_unknown_number_of_layers(convert):
    message = refused(convert, TIES + "parameters: {density: [0.2, 0.8]}")
    assert "parameters.density: found [0.2, 0.8]" in message
    assert "--layers" in message


def test_weights_that_change_their_proportion(convert):
    text = """
    merge_method: task_arithmetic
    base_model: b
    models:
      - {model: x, parameters: {weight: [{filter: mlp, value: 0.2}, {value: 0.4}]}}
      - {model: y, parameters: {weight: 0.3}}
    """
    message = refused(convert, text)
    assert "0.2 : 0.3 for tensors whose name holds 'mlp', 0.4 : 0.3 for others (x, y)" in message
    assert "scale" in message
    assert "skip" in message


def test_a_narrower_filter_ends_the_skip_of_a_broader_one(convert):
    text = """
    merge_method: task_arithmetic
    base_model: b
    models:
      - {model: x, parameters: {weight: [{filter: mlp.up, value: 1}, {filter: mlp, value: 0}, {value: 1}]}}
      - {model: y, parameters: {weight: 1}}
    """
    rules = convert(text).data["rules"]
    assert rules == [{"tensors": "*mlp*", "skip": ["x"]}, {"tensors": "*mlp.up*", "skip": []}]


def test_a_sign_that_a_filter_turns(convert):
    text = """
    {merge_method: ties, base_model: b, models: [{model: x}],
     parameters: {weight: [{filter: mlp, value: -1}, {value: 1}]}}
    """
    assert "-1 for tensors whose name holds 'mlp'" in refused(convert, text)


def test_linear_whose_weights_would_multiply_the_base(convert):
    text = "{merge_method: linear, parameters: {normalize: false, weight: 0.7}, models: [{model: x}, {model: y}]}"
    assert "weights that add up to 1.4" in refused(convert, text)


def test_a_mean_whose_weights_cancel(convert):
    text = """
    {merge_method: linear, models: [{model: x, parameters: {weight: 1}}, {model: y, parameters: {weight: -1}}]}
    """
    assert "can't add up to 0" in refused(convert, text)


def test_weights_that_are_missing_or_zero(convert):
    text = "{merge_method: ties, base_model: b, models: [{model: x}, {model: y}]}"
    assert "parameters.weight: found nothing for x" in refused(convert, text)
    assert "nothing would be merged" in refused(convert, text[:-1] + ", parameters: {weight: 0}}")
    assert "nothing for x" in refused(convert, "{merge_method: linear, models: [{model: x}, {model: y}]}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "expected a mergekit configuration"),
        ("{base_model: b, models: [{model: x}]}", "merge_method: missing"),
        ("{base_model: b, gate_mode: hidden, experts: [{source_model: x}]}", "mixture of experts"),
        ("{merge_method: ram, models: [{model: x}]}", "base_model: found nothing"),
        ("{merge_method: ram, base_model: b}", "found neither"),
        ("{merge_method: ram, base_model: b, models: [{model: x}], slices: [{}]}", "found models and slices"),
        ("{merge_method: ram, base_model: b, models: [{model: b}]}", "no model beside the base"),
        ("{merge_method: ram, base_model: b, models: {model: b}}", "expected a list"),
        ("{merge_method: ram, base_model: b, models: [x]}", "models.0: found x; expected a mapping with model"),
        ("{merge_method: ram, base_model: b, models: [{model: x, parameter: 1}]}", "Did you mean 'parameters'?"),
        ("{merge_method: ram, base_model: b, models: [{model: x}, {model: x}]}", "stands here twice"),
        ("{merge_method: ram, base_model: b+lora, models: [{model: x}]}", "base_model: found b+lora"),
        ("{merge_method: ram, base_model: b, models: [{model: x+org/lora}]}", "LoRA adapter"),
        ("{merge_method: ram, base_model: b, models: [{model: {path: x}}]}", "models.0.model: found {'path': 'x'}"),
    ],
)
def test_a_file_that_is_no_such_configuration(convert, text, words):
    assert words in refused(convert, text)


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ("[{sources: [{model: x, layer_range: [0, 4]}]}, {sources: [{model: x, layer_range: [2, 6]}]}]", "slices.1"),
        ("[{sources: [{model: x, layer_range: [2, 6]}]}]", "layer_range from 2"),
        ("[{sources: [{model: x, layer_range: [0, 4]}, {model: y, layer_range: [4, 8]}]}]", "different layers"),
        ("[{sources: [{model: x, layer_range: [0, 3]}]}]", "layer_range up to 3"),
        ("[{sources: [{model: x}]}]", "slices.0.sources.0.layer_range: found None"),
        ("[{sources: [{model: x, layer_range: [4, 4]}]}]", "two layer numbers"),
        ("[{sources: []}]", "expected a mapping with a list of sources"),
        ("{sources: []}", "slices: found {'sources': []}; expected a list"),
        ("[{sources: [{model: x, layer_range: [0, 4]}], base_model: z}]", "slices.0.base_model: found z"),
        ("[{sources: [{model: x, layer_range: [0, 4]}], residual_weight: 0.1}]", "slices.0.residual_weight: found 0.1"),
        ("[{sources: [{model: x, layer_rang: [0, 4]}]}]", "slices.0.sources.0.layer_rang: found [0, 4]"),
    ],
)
def test_slices_that_leave_out_repeat_or_move_layers(convert, slices, words):
    assert words in refused(convert, f"{{merge_method: ram, base_model: b, slices: {slices}}}", layers=4)


def test_every_refusal_of_a_stage_is_told_at_once(convert):
    message = refused(convert, TIES + "dtype: int8\nmodules: {a: {}}\nparameter: 1")
    assert len(message.splitlines()) == 3


def test_several_documents_in_one_file(convert):
    message = refused(convert, TIES + "name: first\n---\n" + TIES)
    assert "holds 2 documents (---): first, without a name, expected one merge" in message


def test_a_refusal_holds_its_parts(convert):
    with pytest.raises(RecipeError) as raised:
        convert(TIES + "tokenizer_source: z/other\ndtype: int8")
    dtype, tokenizer = sorted(raised.value.problems, key=lambda problem: problem.where.path)
    assert (tokenizer.where.path, tokenizer.todo[:8]) == ("tokenizer_source", "Nearest:")
    assert (dtype.where.path, dtype.expected) == ("dtype", "one of float32, float16, bfloat16")
    assert dtype.where.source.endswith("mergekit.yml")
