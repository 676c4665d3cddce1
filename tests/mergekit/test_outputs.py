"""dtype, tokenizer, and what is left out without harm but said."""

import pytest

RAM = "merge_method: ram\nbase_model: org/base\nmodels: [{model: org/x}, {model: org/y}]\n"


@pytest.mark.parametrize(
    ("lines", "dtype"),
    [
        ("", None),
        ("dtype: bfloat16", "bfloat16"),
        ("dtype: float32", "float32"),
        ("dtype: float32\nout_dtype: float16", "float16"),
        ("out_dtype: bfloat16", "bfloat16"),
    ],
)
def test_the_output_dtype(convert, lines, dtype):
    assert convert(RAM + lines).data.get("output") == (None if dtype is None else {"dtype": dtype})


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("", None),
        ("tokenizer_source: base", "base"),
        ("tokenizer_source: org/base", "base"),
        ("tokenizer_source: org/y", "y"),
        ("tokenizer_source: model:org/y", "y"),
        ("tokenizer: {source: org/x, tokens: {}, pad_to_multiple_of: null}", "x"),
        ("tokenizer_source: null\nchat_template: null", None),
    ],
)
def test_whose_tokenizer(convert, lines, name):
    assert convert(RAM + lines).data.get("inputs") == (None if name is None else {"tokenizer_from": name})


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        ("dtype: bfloat16", "also calculates in bfloat16"),
        ("dtype: float32\nout_dtype: float16", "dtype: left out"),
        ("name: mine", "name: 'mine' is left out"),
        ("parameters: {int8_mask: true}", "parameters.int8_mask: left out"),
        ("parameters: {normalize: true}", "parameters.normalize: left out; mergekit's ram does not use it"),
    ],
)
def test_what_is_left_out_is_said(convert, lines, warning):
    assert any(warning in said for said in convert(RAM + lines).warnings)


def test_nothing_is_said_where_nothing_is_left_out(convert):
    assert convert(RAM).warnings == ()


def test_parameters_that_mergekit_does_not_read_where_they_stand_are_said(convert):
    text = """
    merge_method: ties
    base_model: b
    models:
      - {model: b, parameters: {weight: 1, density: 0.1}}
      - {model: x, parameters: {weight: 1, density: 0.5, normalize: false, lambda: 3}}
    """
    conversion = convert(text)
    assert (conversion.data["method"]["density"], conversion.data["method"]["scale"]) == (0.5, 1.0)
    for where in ("models.0.parameters.weight", "models.0.parameters.density", "models.1.parameters.lambda"):
        assert any(said.startswith(f"{where}: left out") for said in conversion.warnings)
