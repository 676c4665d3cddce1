"""LoRA adapters as agents: merged as what their trainer would have saved, or refused by name with what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.sources.adapters import PEFT, embedded, lora, matrices, put_adapter, summed
from tests.symptoms.conftest import BF16, CONFIG, EMBED, HEAD, MLP, ROWS, WIDTH, Case, model, ram, same, trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.tensors import Array

UP = MLP.removesuffix(".weight")
A, B = matrices(1, 20, WIDTH, 4)
WEIGHT_A, WEIGHT_B = f"{PEFT}{UP}.lora_A.weight", f"{PEFT}{UP}.lora_B.weight"


def adapted(case: Case, tensors: Mapping[str, Array], base: Mapping[str, Array] | None = None, **config: Any) -> None:
    """A base, and an agent that is an adapter."""
    case.put("base", dict(model() if base is None else base))
    case.agents["code"] = str(put_adapter(case.folder / "code", tensors, **config))


def test_an_adapter_merges_with_a_full_agent_like_the_weights_that_it_makes(case: Case) -> None:
    base = model()
    adapted(case, lora(UP, A, B), base)
    tool = trained(base, 2)
    case.put("tool", tool)
    case.merge()
    code = {**base, MLP: summed(base[MLP], A, B, 2.0).astype(np.float32).astype(BF16)}
    for name, array in case.result.items():
        same(array, ram(base[name], code[name], tool[name]))
    made = case.result
    case.put("code", code)
    case.merge()
    for name, array in case.result.items():
        assert array.tobytes() == made[name].tobytes()


def test_exact_counts_what_the_base_dtype_can_not_show(case: Case) -> None:
    adapted(case, lora(UP, A, B * np.float32(1e-3)))
    changed = {}
    for way in ("base_dtype", "exact"):
        agents = {"code": {"source": case.agents["code"], "materialize": way}}
        changed[way] = case.merge(agents=agents).survey.agents["code"].changed
    assert 2 * changed["base_dtype"] < changed["exact"] <= 20 * WIDTH
    text = "\n".join(str(finding) for finding in case.check().findings)
    assert "with base_dtype" in text
    assert "with exact" in text


def test_a_base_of_another_name_is_a_warning(case: Case) -> None:
    adapted(case, lora(UP, A, B), base_model_name_or_path="org/other-model")
    (warning,) = [text for text in map(str, case.merge().warnings) if "trained on" in text]
    assert "trained on org/other-model, and the base is" in warning
    for name in ("org/base", str(case.folder / "base"), "/elsewhere/base"):
        put_adapter(case.folder / "code", lora(UP, A, B), base_model_name_or_path=name)
        assert not any("trained on" in str(text) for text in case.merge().warnings)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "alpha 0": ({"lora_alpha": 0}, "'lora_alpha' is 0: nothing of the training is left"),
    "alpha 0 of a module": ({"alpha_pattern": {"up_proj": 0.0}}, "'alpha_pattern.up_proj' is 0"),
    "rank 0": ({"r": 0}, "'r' is 0"),
    "DoRA": ({"use_dora": True}, "DoRA"),
    "VeRA": ({"peft_type": "VERA"}, "'VERA'"),
    "LoHa": ({"peft_type": "LOHA"}, "'LOHA'"),
    "OFT": ({"peft_type": "OFT"}, "'OFT'"),
    "IA3": ({"peft_type": "IA3"}, "'IA3'"),
    "AdaLoRA": ({"peft_type": "ADALORA"}, "'ADALORA'"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "takes its first product out of the base"),
    "experts": ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
    "another rank": ({"r": 8}, "is of rank 4 (A) and 4 (B), expected 8"),
    "a pattern that would never end": ({"rank_pattern": {"(a+)+b": 4}}, "regular expression with few repetitions"),
    "no pattern": ({"rank_pattern": {"(": 4}}, "expected a module or a regular expression"),
    "a text for a flag": ({"use_rslora": "yes"}, "use_rslora is 'yes', expected true or false"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_sum_of_base_and_product_is_refused_by_name(case: Case, what: str) -> None:
    config, message = REFUSED[what]
    adapted(case, lora(UP, A, B), **config)
    text = case.refused_early("agent 'code'", "adapter_config.json" if "rank 4" not in message else "code", message)
    assert not any(word in text for word in ("--missing base", "--extra ignore"))


BROKEN: dict[str, tuple[dict[str, Array], str]] = {
    "half a pair": ({WEIGHT_A: A}, "has no counterpart of side B"),
    "another module": (lora("model.layers.9.mlp.up_proj", A, B), "which the base lacks"),
    "another shape": (lora(UP, B.T.copy(), B), "make a matrix [20, 20], expected [20, 12]"),
    "a convolution": ({WEIGHT_A: A[..., None, None], WEIGHT_B: B[..., None, None]}, "a convolution?"),
    "integers": ({WEIGHT_A: A.astype(np.int8), WEIGHT_B: B}, "has dtype I8, expected floats"),
    "DoRA by its tensors": (lora(UP, A, B) | {f"{PEFT}{UP}.lora_magnitude_vector": A}, "is of DoRA"),
    "LoHa by its tensors": ({f"{PEFT}{UP}.hada_w1_a": A}, "is of LoHa"),
    "something else": (lora(UP, A, B) | {f"{PEFT}{UP}.lora_C.weight": A}, "is of no kind that is known here"),
    "a bias without one": (lora(UP, A, B) | {f"{PEFT}{UP}.lora_B.bias": A[0]}, "which the base lacks"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_tensor_that_does_not_fit_is_named(case: Case, what: str) -> None:
    tensors, message = BROKEN[what]
    adapted(case, tensors)
    text = case.refused_early("agent 'code'", "adapter_model.safetensors", message)
    assert any(name[len(PEFT) : len(PEFT) + 5] in text for name in tensors)


def test_a_square_matrix_of_an_unsure_direction_is_refused(case: Case) -> None:
    square = {**model(), "model.layers.0.q.weight": np.zeros((12, 12), BF16)}
    tensors = {**lora(UP, *matrices(1, WIDTH, 20, 4)), **lora("model.layers.0.q", *matrices(2, 12, 12, 4))}
    adapted(case, tensors, square)
    case.refused_early("square matrix", "fan_in_fan_out (false) is not true of")
    put_adapter(case.folder / "code", tensors, fan_in_fan_out=True)
    case.merge()


def test_a_quantised_base_is_refused(case: Case) -> None:
    base = {**model(), MLP: model()[MLP].view(np.int16)}
    adapted(case, lora(UP, A, B), base)
    case.refused("the base has dtype I16, expected floats")


@pytest.mark.parametrize("name", ["adapters.safetensors", "adapter_model-00001-of-00002.safetensors"])
def test_other_adapters_are_refused_with_their_converter(case: Case, name: str) -> None:
    adapted(case, lora(UP, A, B))
    (case.folder / "code" / "adapter_model.safetensors").rename(case.folder / "code" / name)
    case.refused_early("merge_and_unload", name)


def test_an_adapter_without_its_config_is_refused(case: Case) -> None:
    adapted(case, lora(UP, A, B))
    (case.folder / "code" / "adapter_config.json").unlink()
    case.refused_early("without adapter_config.json", "merge_and_unload")


def test_the_file_itself_may_be_given(case: Case) -> None:
    adapted(case, lora(UP, A, B))
    case.agents["code"] += "/adapter_model.safetensors"
    assert case.merge().survey.agents["code"].changed > 0


def tied(case: Case, tensors: Mapping[str, Array], **config: Any) -> dict[str, Array]:
    """A base that ties its head, and an adapter."""
    base = {name: array for name, array in model().items() if name != HEAD}
    adapted(case, tensors, base, **config)
    (case.folder / "base" / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    return base


ON_HEAD = lora("lm_head", *matrices(5, ROWS, WIDTH, 4))
ON_EMBEDDING = embedded("model.embed_tokens", *matrices(6, WIDTH, ROWS, 4))


@pytest.mark.parametrize("tensors", [ON_HEAD, ON_EMBEDDING, {f"{PEFT}lm_head.weight": np.ones((ROWS, WIDTH), BF16)}])
def test_a_tied_base_of_which_one_side_was_trained_has_two_tensors_then(case: Case, tensors: dict[str, Array]) -> None:
    base = tied(case, tensors)
    case.refused("--untie")
    case.inputs["untie"] = True
    case.merge()
    moved = {name: (case.result[name] != base[EMBED]).any() for name in (EMBED, HEAD)}
    assert moved == {EMBED: tensors is ON_EMBEDDING, HEAD: tensors is not ON_EMBEDDING}


def test_a_check_tells_that_one_side_of_a_tied_base_was_trained(case: Case) -> None:
    tied(case, embedded(EMBED.removesuffix(".weight"), *matrices(5, WIDTH, ROWS, 4)))
    case.refused_early("differs from model.embed_tokens.weight", "--untie")
    assert case.check(inputs={"untie": True}).ok


def test_an_embedding_whose_head_was_tied_in_training_stays_tied(case: Case) -> None:
    base = tied(case, ON_EMBEDDING, ensure_weight_tying=True)
    assert case.merge().tensors.merged == len(base)
    assert HEAD not in case.result
    case.put("base", {**base, HEAD: base[EMBED]}, {"tie_word_embeddings": True})  # stored twice
    case.merge()
    assert case.result[HEAD].tobytes() == case.result[EMBED].tobytes() != base[EMBED].tobytes()


def test_materialize_on_whole_weights_is_told_and_changes_nothing(case: Case) -> None:
    case.put("base", model())
    case.put("code", trained(model(), 1))
    case.merge()
    plain = case.result
    agents = {"code": {"source": case.agents["code"], "materialize": "exact"}}
    (warning,) = [text for text in map(str, case.merge(agents=agents).warnings) if "materialize" in text]
    assert "no LoRA adapter" in warning
    for name, array in case.result.items():
        assert array.tobytes() == plain[name].tobytes()
