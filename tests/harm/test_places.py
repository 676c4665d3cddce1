"""Places of a model: by names alone, and globs that fit them and nothing else."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import combinations

import pytest

from agentmerge.harm.places import globs_of, place_of

LLAMA = [
    "model.embed_tokens.weight",
    *(
        f"model.layers.{i}.{name}.weight"
        for i in (0, 1, 10, 11)
        for name in ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
    ),
    "model.norm.weight",
    "lm_head.weight",
]
GPT2 = [f"transformer.h.{i}.{name}" for i in (0, 1) for name in ("ln_1.weight", "attn.c_attn.weight", "mlp.c_fc.bias")]


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ("model.layers.3.mlp.up_proj.weight", "layer 3 mlp"),
        ("model.layers.12.mlp.experts.7.up_proj.weight", "layer 12 mlp"),
        ("transformer.h.0.attn.c_attn.weight", "layer 0 attn"),
        ("model.norm.weight", "model.norm"),
        ("scale", "scale"),
    ],
)
def test_a_tensor_has_a_place_that_people_understand(tensor: str, told: str) -> None:
    assert str(place_of(tensor)) == told


@pytest.mark.parametrize("names", [LLAMA, [f"{name}" for name in [*GPT2, "transformer.wte.weight"]]])
def test_a_places_glob_fits_its_own_tensors_and_no_others(names: list[str]) -> None:
    for place in {place_of(name) for name in names}:
        fitting = {name for name in names if fnmatchcase(name, place.glob)}
        assert fitting == {name for name in names if place_of(name) == place}


def test_globs_of_any_two_places_fit_them_alone() -> None:
    places = sorted({place_of(name) for name in LLAMA})
    for pair in combinations(places, 2):
        globs = globs_of(pair, places)
        fitting = {name for name in LLAMA if any(fnmatchcase(name, glob) for glob in globs)}
        assert fitting == {name for name in LLAMA if place_of(name) in pair}


def test_a_part_of_every_layer_is_one_glob() -> None:
    places = {place_of(name) for name in LLAMA}
    assert globs_of({place for place in places if place.part == "mlp"}, places) == ["*.mlp.*"]
    assert globs_of({place_of("model.layers.1.mlp.up_proj.weight")}, places) == ["*layers.1.mlp.*"]
