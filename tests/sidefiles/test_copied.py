"""Side files are copied byte for byte, weights stay behind, and the config tells the true dtype."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import SourceError
from agentmerge.sidefiles.config import output_config, true_dtype
from agentmerge.sidefiles.copied import side_files
from agentmerge.sources.beside import is_tokenizer, read_config

if TYPE_CHECKING:
    from pathlib import Path

COPIED = {
    "config.json": b'{"a": 1}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"\xff\x00 not even text",
    "tokenizer_config.json": b"{}",
    "vocab.json": b"{}",
    "merges.txt": b"a b\r\n",
    "chat_template.jinja": b"{{ messages }}",
    "modeling_own.py": b"import torch\n",
    "preprocessor_config.json": b"{}",
    "LICENSE": b"Apache",
    "additional_chat_templates/tool.jinja": b"x",
    "1_Pooling/config.json": b"{}",
}
LEFT = {
    "model.safetensors": b"w",
    "model-00001-of-00002.safetensors": b"w",
    "model.safetensors.index.json": b"{}",
    "pytorch_model.bin": b"w",
    "pytorch_model.bin.index.json": b"{}",
    "model.gguf": b"w",
    "optimizer.pt": b"w",
    "optimizer_state.json": b"w",
    "training_args.bin": b"w",
    "trainer_state.json": b"{}",
    "rng_state_0.pth": b"w",
    "scheduler.json": b"w",
    "events.out.tfevents.1": b"w",
    "README.md": b"# base",
    "merge_record.json": b"{}",
    ".gitattributes": b"x",
    ".cache/huggingface/x.json": b"x",
    "checkpoint-100/config.json": b"{}",
    "checkpoint-100/model.safetensors": b"w",
    "original/params.json": b"{}",
    "original/consolidated.00.pth": b"w",
}


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def test_exactly_the_side_files_are_copied_byte_for_byte(tmp_path: Path) -> None:
    assert side_files(folder_of(tmp_path, COPIED | LEFT)) == COPIED


def test_the_tokenizer_comes_whole_from_the_donor_and_the_rest_from_the_base(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", COPIED)
    donor = folder_of(tmp_path / "donor", {"tokenizer.json": b"new", "config.json": b"other", "tokenizer.model": b"sp"})
    found = side_files(base, donor)
    assert found["tokenizer.json"] == b"new"
    assert found["tokenizer.model"] == b"sp"
    assert found["config.json"] == COPIED["config.json"]
    assert "vocab.json" not in found
    assert "additional_chat_templates/tool.jinja" not in found
    assert "modeling_own.py" in found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tokenizer.json", True),
        ("tokenizer.model", True),
        ("tokenizer/vocab.json", True),
        ("special_tokens_map.json", True),
        ("chat_template.jinja", True),
        ("additional_chat_templates/rag.jinja", True),
        ("config.json", False),
        ("vocabulary_of_ours.md", False),
        ("modeling_tokenizer.py", False),
    ],
)
def test_what_belongs_to_a_tokenizer(name: str, *, expected: bool) -> None:
    assert is_tokenizer(name) is expected


def test_a_linked_file_is_copied_and_a_linked_folder_is_not(tmp_path: Path) -> None:
    blobs = folder_of(tmp_path / "blobs", {"abc": b"{}", "more/x.json": b"x"})
    base = folder_of(tmp_path / "base", {})
    base.mkdir()
    (base / "config.json").symlink_to(blobs / "abc")
    (base / "linked").symlink_to(blobs / "more")
    assert side_files(base) == {"config.json": b"{}"}


# config


def test_a_config_is_read_or_absent_or_refused(tmp_path: Path) -> None:
    assert read_config(tmp_path) == {}
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert read_config(tmp_path) == {"a": 1}
    for text in ("[1]", "{", "3", "\x00", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(SourceError, match=r"config\.json: (not valid JSON|expected a JSON object)"):
            read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SourceError, match="not valid JSON"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"BF16": 10, "F32": 1}, "bfloat16"),
        ({"F32": 10, "I64": 99}, "float32"),
        ({"F16": 1}, "float16"),
        ({"F64": 2, "F16": 1}, "float64"),
        ({"I64": 3, "BOOL": 1}, None),
        ({}, None),
    ],
)
def test_the_true_dtype_is_that_of_most_elements(counts: dict[str, int], expected: str | None) -> None:
    assert true_dtype(counts) == expected


def dtypes(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(output_config(json.dumps(config).encode(), dtype, {}))
    return result


@pytest.mark.parametrize(
    "config", [{}, {"dtype": "float16"}, {"torch_dtype": "float16"}, {"dtype": "a", "torch_dtype": "b"}]
)
def test_the_dtype_stands_in_both_spellings(config: dict[str, Any]) -> None:
    assert dtypes(config, "bfloat16") == {"dtype": "bfloat16", "torch_dtype": "bfloat16"}


def test_nested_sections_that_name_a_dtype_are_set_too_and_others_left() -> None:
    config = {
        "torch_dtype": "bfloat16",
        "text_config": {"torch_dtype": "bfloat16", "n": 1},
        "vision_config": {"n": 2, "inner_config": {"dtype": "bfloat16"}},
        "quantization_config": {"dtype": "int8"},
        "rope_scaling": {"dtype": "x"},
    }
    found = dtypes(config, "float32")
    assert found["text_config"] == {"torch_dtype": "float32", "n": 1}
    assert found["vision_config"] == {"n": 2, "inner_config": {"dtype": "float32"}}
    assert found["quantization_config"] == {"dtype": "int8"}
    assert found["rope_scaling"] == {"dtype": "x"}


def test_a_config_that_is_true_already_is_not_touched() -> None:
    config = b'{ "dtype":"bfloat16",\n\t"torch_dtype": "bfloat16", "eps": 1e-06 }'
    assert output_config(config, "bfloat16", {}) is config


def test_everything_else_of_a_config_stays_as_it_was() -> None:
    config = {"z": 1e-06, "a": [1, None, True], "name": "Zürich 東京", "torch_dtype": "float32", "big": 10**20}
    found = dtypes(config, "bfloat16")
    assert {key: found[key] for key in config if key != "torch_dtype"} == {
        key: config[key] for key in config if key != "torch_dtype"
    }
    assert list(found)[:5] == list(config)
    assert "東京" in output_config(json.dumps(config).encode(), "bfloat16", {}).decode()


def test_a_single_file_takes_along_only_well_known_files_beside_it(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "letters.txt", "sub/secret.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert sorted(side_files(tmp_path, known_only=True)) == ["config.json", "tokenizer.json"]
    assert "letters.txt" in side_files(tmp_path)
