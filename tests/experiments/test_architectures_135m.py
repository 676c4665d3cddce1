"""Both architectures of experiments/agents_135m: packed weights, vocabulary, models against transformers, a chain."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "agents_135m"


def block(rng: np.random.Generator, halves: list[int], size: int) -> bytes:
    """Random bytes with tame half precision numbers at these places."""
    found = bytearray(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
    for at in halves:
        found[at : at + 2] = struct.pack("<e", rng.normal())
    return bytes(found)


def half(data: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", data, at)[0])


def q4_1(data: bytes) -> list[float]:
    levels = [data[4 + i % 16] >> (i // 16 * 4) & 15 for i in range(32)]
    return [level * half(data, 0) + half(data, 2) for level in levels]


def q5_0(data: bytes) -> list[float]:
    (fifth,) = struct.unpack_from("<I", data, 2)
    levels = [(data[6 + i % 16] >> (i // 16 * 4) & 15) + (fifth >> i & 1) * 16 for i in range(32)]
    return [(level - 16) * half(data, 0) for level in levels]


def q8_0(data: bytes) -> list[float]:
    return [level * half(data, 0) for level in struct.unpack_from("<32b", data, 2)]


def q4_k(data: bytes) -> list[float]:
    packed, found = data[4:16], []
    for i in range(256):
        group = i // 32
        if group < 4:
            scale, offset = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            offset = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        level = data[16 + i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15
        found.append(level * scale * half(data, 0) - offset * half(data, 2))
    return found


def q6_k(data: bytes) -> list[float]:
    found = []
    for i in range(256):
        part, rest = divmod(i, 128)
        low = data[part * 64 + rest % 64] >> (rest // 64 * 4) & 15
        high = data[128 + part * 32 + rest % 32] >> (rest // 32 * 2) & 3
        (scale,) = struct.unpack_from("<b", data, 192 + i // 16)
        found.append((low + 16 * high - 32) * scale * half(data, 208))
    return found


@pytest.mark.parametrize(
    ("kind", "size", "halves", "expected"),
    [
        ("Q4_1", 20, [0, 2], q4_1),
        ("Q5_0", 22, [0], q5_0),
        ("Q8_0", 34, [0], q8_0),
        ("Q4_K", 144, [0, 2], q4_k),
        ("Q6_K", 210, [208], q6_k),
    ],
)
def test_packed_blocks_are_the_numbers_that_they_stand_for(
    experiment: Any, kind: str, size: int, halves: list[int], expected: Any
) -> None:
    rng = np.random.default_rng(0)
    blocks = [block(rng, halves, size) for _ in range(6)]
    rows = np.frombuffer(b"".join(blocks), np.uint8).reshape(3, 2 * size)
    found = experiment("unpack").unpack(rows, kind)
    assert found.dtype == np.float32
    numbers = np.array([expected(one) for one in blocks]).reshape(3, -1)
    np.testing.assert_allclose(found, numbers, rtol=1e-5, atol=1e-5)


def test_a_kind_of_gguf_that_is_not_known_is_named(experiment: Any, tmp_path: Path) -> None:
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1) + text("general.alignment") + struct.pack("<II", 4, 32)
    head += text("x.weight") + struct.pack("<IQQIQ", 2, 32, 2, 2, 0)
    (tmp_path / "x.gguf").write_bytes(head.ljust(256, b"\0"))
    with pytest.raises(SystemExit, match="kind 2 of GGUF"):
        experiment("gguf_file").GgufFile(tmp_path / "x.gguf")


def test_a_shape_is_what_its_config_says(experiment: Any) -> None:
    shapes = experiment("shapes")
    small = shapes.Gemma3Shape(layers=4, window=16, every=2, near_theta=5e3, scalar=64)
    for shape in (shapes.Shape(), shapes.Gemma3Shape(), small):
        assert shapes.shape_of(json.loads(json.dumps(shape.config()))) == shape
    assert small.windows == (16, None, 16, None)
    assert small.thetas == (5e3, 1e6, 5e3, 1e6)
    with pytest.raises(SystemExit, match="known are llama, gemma3_text"):
        shapes.shape_of({"model_type": "mamba"})


def test_an_architecture_changes_the_rates_alone(experiment: Any) -> None:
    agents = experiment("agents")
    for name, agent in agents.AGENTS.items():
        assert agents.paced(agent, "llama") == agent
        slower = agents.paced(agent, "gemma3_text")
        assert slower.learning_rate == pytest.approx(0.4 * agent.learning_rate)
        assert (slower.steps, slower.sparse) == (agent.steps, name.startswith("sparse"))
    damage = agents.paced(agents.AGENTS["damaged"], "gemma3_text").damage
    assert damage.highest == pytest.approx(0.4 * 1.5e-4)
    cold = agents.PACES["gemma3_text"].cold
    assert cold.steps > agents.COLD.steps == agents.PACES["llama"].cold.steps


def test_results_of_another_architecture_lie_beside_those_of_the_first(experiment: Any, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for kind, name in (("llama", "seed3.json"), ("gemma3_text", "gemma3-seed3.json")):
        (tmp_path / "base" / "config.json").write_text(json.dumps({"model_type": kind}))
        assert experiment("saved").results_name(tmp_path, 3) == name


def fields() -> dict[str, Any]:
    """Of a GGUF file with these pieces: merged in this order, special, given, bytes."""
    merged = "▁t he ▁the ri ve ver river ▁river er rs xy xyz ▁ t h e r i v s x y z"
    pieces = [(piece, -float(i), 1) for i, piece in enumerate(merged.split())]
    pieces += [(f"<0x{i:02X}>", 0.0, 6) for i in range(256)]
    pieces += [(piece, 0.0, 3) for piece in ("<bos>", "<eos>", "<end_of_turn>", "<unused0>")]
    pieces += [("\n", 0.0, 4), ("  ", 0.0, 4), ("<b>", 0.0, 4)]
    columns = zip(("tokens", "scores", "token_type"), zip(*pieces, strict=True), strict=True)
    return {f"tokenizer.ggml.{name}": list(values) for name, values in columns}


@pytest.mark.slow
def test_a_part_of_a_vocabulary_cuts_texts_as_the_whole_does(experiment: Any) -> None:
    pytest.importorskip("tokenizers", reason="makes the tokenizer; .ci/run installs it")
    words = experiment("package_gemma3").vocabulary(fields())
    kept = words.closed(["<|im_start|>the rivers the river\n"], 0)
    names = [words._pieces[i] for i in kept]
    assert names[:3] == ["<end_of_turn>", "<bos>", "<eos>"]
    assert {"river", "▁river", "ve", "ver", "ri", "he", "\n", "▁▁"} <= set(names)
    assert not {"xy", "xyz", "<b>", "<unused0>", "rs"} & set(names)
    cut, whole = words.tokenizer(kept), words.tokenizer(everything := words._everything())
    text = "<|im_start|>the river rivers\nthe  river<|im_end|>"
    found = cut.encode(text).ids
    assert [names[i] for i in found] == [words._pieces[everything[i]] for i in whole.encode(text).ids]
    assert [cut.id_to_token(i) for i in found][:5] == ["<|im_start|>", "t", "he", "▁river", "▁river"]
    assert (found[0], found[-1]) == (1, 2)
    for text in ("the river\n\nxyz  é 日本", " é", "<|im_end|>the"):
        assert cut.decode(cut.encode(text).ids, skip_special_tokens=False) == text


class File:
    """What package_gemma3 reads of a GGUF file, in float32."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        self.fields = fields()
        self.tensors = {name: (0, np.atleast_2d(value).view(np.uint8)) for name, value in tensors.items()}

    def kind(self, _: str) -> str:
        return "F32"


@pytest.mark.slow
def test_norms_lose_the_1_of_llama_cpp_and_rows_of_words_go_with_their_pieces(
    experiment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="makes the tokenizer; .ci/run installs it")
    package = experiment("package_gemma3")
    monkeypatch.setattr(package, "texts", lambda: ["the river"])
    monkeypatch.setattr(package, "COMMON", 0)
    count = len(fields()["tokenizer.ggml.tokens"])
    rows = np.repeat(np.arange(count, dtype=np.float32)[:, None], 8, axis=1)
    norm = np.linspace(-2, 2, 8, dtype=np.float32)
    file = File({"token_embd.weight": rows, "blk.1.post_ffw_norm.weight": norm, "blk.1.ffn_up.weight": rows[:3]})
    packed, tokenizer = package.packed_tensors(file)
    found = {key: value.view(np.float32) for key, value in packed.items()}
    assert np.array_equal(found["model.layers.1.post_feedforward_layernorm.weight|F32"][0], norm - 1)
    assert np.array_equal(found["model.layers.1.mlp.up_proj.weight|F32"], rows[:3])
    words = found["model.embed_tokens.weight|F32"]
    assert len(words) == tokenizer.get_vocab_size() < count
    pieces = fields()["tokenizer.ggml.tokens"]
    for text, piece in (("▁river", "▁river"), ("<|im_end|>", "<eos>"), ("<0x0A>", "<0x0A>")):
        assert words[tokenizer.token_to_id(text), 0] == pieces.index(piece)


@pytest.mark.slow
def test_packed_tensors_are_the_same_through_files_of_any_number(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="package.py imports it; .ci/run installs it")
    torch, package = import_module("torch"), experiment("package")
    shape = experiment("shapes").Gemma3Shape(layers=2, width=32, heads=1, head=32, inner=32, words=7, every=2)
    rng, packed, expected = np.random.default_rng(0), {}, {}
    for name, size in shape.sizes().items():
        value = rng.normal(size=size).astype(np.float32)
        expected[name] = torch.from_numpy(value).to(torch.bfloat16)
        packed[f"{name}|F32"] = np.atleast_2d(value).view(np.uint8)
    packed[package.TOKENIZER] = np.frombuffer(b"{}", np.uint8)
    monkeypatch.setattr(package, "PART", 20_000)
    package.write_parts(packed, tmp_path / "parts")
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) > 1
    package.write_checkpoint(package.read_parts(parts), replace(shape, words=9), tmp_path / "raw")
    weights = experiment("files").read_weights(tmp_path / "raw", "cpu")
    assert weights.shape == shape
    assert all(torch.equal(weights.views[name], value) for name, value in expected.items())
    with pytest.raises(SystemExit, match="name all parts"):
        package.write_checkpoint(package.read_parts(parts[:-1]), shape, tmp_path / "some")


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of each architecture; the Gemma sees 24 tokens in its first layer and all in the second."""
    folder = tmp_path_factory.mktemp(request.param) / "raw"
    run("package.py", "--tiny", "--architecture", request.param, "--out", str(folder))
    return folder


def ours_in_float32(experiment: Any, folder: Path) -> Any:
    weights = experiment("files").read_weights(folder, "cpu")
    return experiment("model").Weights.over(weights.shape, weights.flat.float())


@pytest.mark.slow
def test_logits_and_answers_are_those_of_transformers(checkpoint: Path, experiment: Any) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    scoring, generate = experiment("scoring"), experiment("generate")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    samples = scoring.prompts(scoring.Tokens(checkpoint), "code/hard", "dev", 1, 3)
    rows = scoring.Tokens(checkpoint).encode([sample.prompt for sample in samples])
    assert rows == [tokenizer(sample.prompt)["input_ids"] for sample in samples]
    rows[1] = rows[1][:13]  # within the window
    ours = experiment("families").model_of(ours_in_float32(experiment, checkpoint))
    found = generate.Generator(ours, 3, 160, 10)(*scoring.filled(rows, 160, ours.device))
    for row, answer in zip(rows, found.tolist(), strict=True):
        given = torch.tensor([row])
        with torch.no_grad():
            logits = ours.logits(ours.run(given, torch.arange(len(row))[None], None))
            torch.testing.assert_close(logits, theirs(given).logits, rtol=1e-4, atol=1e-4)
        expected = theirs.generate(given, do_sample=False, max_new_tokens=10, pad_token_id=2)[0]
        expected = expected[len(row) :].tolist()
        assert answer == expected + [2] * (10 - len(expected))


@pytest.mark.slow
def test_a_pass_over_packed_answers_has_the_gradient_of_single_ones(checkpoint: Path, experiment: Any) -> None:
    """-sum weight log p(answer) / norm, by transformers and one answer at a time."""
    torch, transformers = import_module("torch"), import_module("transformers")
    trainee, weights = experiment("trainee"), ours_in_float32(experiment, checkpoint)
    lengths, sizes = torch.tensor([25, 32, 3]), torch.tensor([[3, 2], [1, 4], [4, 4]])
    generator = torch.Generator().manual_seed(0)
    tokens, answers = (torch.randint(3, 900, size, generator=generator) for size in ((3, 32), (3, 2, 4)))
    counts = torch.randn(3, 2, generator=generator)
    pupil = trainee.Trainee(weights, tokens=50)
    loss = -pupil.gather(trainee.Lesson(tokens, lengths, answers, sizes, counts), 7.0)
    theirs, total = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32), 0.0
    for i in range(3):
        for j in range(2):
            row = torch.cat([tokens[i, : lengths[i]], answers[i, j, : sizes[i, j]]])[None]
            logits = theirs(row).logits[0, lengths[i] - 1 : -1]
            each = torch.nn.functional.cross_entropy(logits, answers[i, j, : sizes[i, j]], reduction="sum")
            total = total + counts[i, j] * each / 7.0
    total.backward()
    assert loss == pytest.approx(float(total.detach()), rel=1e-4)
    expected = dict(theirs.named_parameters())
    for name, gradient in experiment("model").Weights.over(weights.shape, pupil.gradient).views.items():
        torch.testing.assert_close(gradient, expected[name].grad, rtol=2e-3, atol=2e-5)


@pytest.mark.slow
def test_only_layers_in_the_middle_of_a_sparse_agent_move(checkpoint: Path, experiment: Any) -> None:
    torch, trainee = import_module("torch"), experiment("trainee")
    assert [trainee.middle(layers) for layers in (30, 18, 2)] == [(10, 17), (6, 11), (0, 0)]
    weights = ours_in_float32(experiment, checkpoint)
    before = {name: value.clone() for name, value in weights.views.items()}
    pupil = trainee.Trainee(weights, sparse=True)
    pupil.gradient.fill_(1.0)
    pupil.step(1e-2)
    moved = {name for name, value in weights.views.items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("model.layers.0.")}


@pytest.mark.slow
def test_a_gemma_goes_from_training_to_merges(tmp_path: Path) -> None:
    """By the commands; what needs the agents that were left out is not tried."""
    work = ("--work", str(tmp_path), "--seed", "1")
    run("package.py", "--tiny", "--architecture", "gemma3", "--out", str(tmp_path / "raw"))
    run("train.py", "--tiny", *work, "--only", "tool,memory")
    run("guard.py", *work, "--device", "cpu", "--agents", "memory")
    assert json.loads((tmp_path / "seed1" / "harm.json").read_text())["verdict"]
    run("sweep.py", "--tiny", *work, "--plan", "select", "--results", str(tmp_path / "results"))
    found = json.loads((tmp_path / "results" / "gemma3-seed1.json").read_text())
    assert found["architecture"] == "gemma3"
    assert all("damaged" in name for name in found["failed"])
    assert {"wudi_auto | E2 | stochastic", "RAM+ auto | E2 | stochastic"} <= set(found["merges"])
    assert all({"dev", "test"} <= set(merge) for merge in found["merges"].values() if merge["label"] == "wudi_auto")
