"""Methods are found by name, alias and entry point, and every one of them keeps the contract."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import yaml

from agentmerge import Recipe, merge, methods, probe, register
from agentmerge.errors import RecipeError
from agentmerge.methods import registry
from agentmerge.methods.base import MergeMethod, Work
from agentmerge.methods.names import OTHERS
from agentmerge.methods.ram import Ram
from agentmerge.methods.registry import known_methods, resolve_method
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import as_float32
from agentmerge.testing import Sources, assert_contract, assert_same_bits, random_stack, read_checkpoint, survey_of
from agentmerge.values import nested

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.tensors import Array, Stack, TensorSpec

PLUGIN = '''
from typing import Literal

import numpy as np

from agentmerge import MergeMethod
from agentmerge.survey.statistic import Survey
from agentmerge.tensors import as_float32


class Median(MergeMethod):
    """The middle one of the agents' numbers."""

    name: Literal["median"] = "median"
    share: float = 1.0

    def merge(self, stack, survey):
        base = as_float32(stack.base)
        tau = np.median(stack.task_vectors(), axis=0).astype(np.float32)
        return np.where(tau == 0, base, base + np.float32(self.share) * tau)
'''


class Halfway(MergeMethod):
    """Half the mean task vector; no kernel, asks nothing."""

    name: Literal["halfway"] = "halfway"

    def merge(self, stack: Stack, survey: Survey) -> Array:
        base = as_float32(stack.base)
        tau = stack.task_vectors().sum(axis=0, dtype=np.float32) / np.float32(2 * len(stack.agents))
        return np.where(tau == 0, base, base + tau)


class Loudest(MergeMethod):
    """The largest task vector, element by element, of whole tensors."""

    name: Literal["loudest"] = "loudest"

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        return Work(reach="tensor")

    def merge(self, stack: Stack, survey: Survey) -> Array:
        base, tau = as_float32(stack.base), stack.task_vectors()
        chosen = np.take_along_axis(tau, np.abs(tau).argmax(axis=0)[None], axis=0)[0]
        return np.where(chosen == 0, base, base + chosen)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, forgotten afterwards."""
    folder, before = tmp_path / "site", set(sys.modules)
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("fake_plugin"):
            del sys.modules[name]


def install(site: Path, code: str, value: str, *, name: str = "fake_plugin") -> None:
    """What `pip install` leaves behind: a module and its dist-info."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (site / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[agentmerge.methods]\nit = {value}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n")
    importlib.invalidate_caches()


# names


def test_the_built_in_names_are_there() -> None:
    assert {name: known_methods()[name] for name in ("ram", "ram_plus", "ram_plus_soft")} == dict.fromkeys(
        ("ram", "ram_plus", "ram_plus_soft"), Ram
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("ram", Ram(name="ram", rescale=0)),
        ("ram_plus", Ram(name="ram_plus", rescale=0.1, clip=2.0, curve="linear", scope="model", threshold=1e-5)),
        ("ram+", Ram(name="ram_plus")),
        ("ram_plus_soft", Ram(name="ram_plus_soft", curve="soft")),
        ("ram+s", Ram(name="ram_plus_soft", curve="soft")),
        ("ram_plus_auto", Ram(name="ram_plus_auto", rescale="auto")),
        ("ram+auto", Ram(name="ram_plus_auto", rescale="auto")),
        ({"name": "ram+", "rescale": 0.2, "clip": 1}, Ram(rescale=0.2, clip=1.0)),
        ({"name": "ram", "threshold": "1e-4"}, Ram(name="ram", rescale=0, threshold=1e-4)),
        ({"name": "ram", "rescale": 0.3}, Ram(name="ram", rescale=0.3)),
    ],
)
def test_a_name_an_alias_or_a_mapping_means_a_method(written: Any, expected: Ram) -> None:
    assert resolve_method(written) == expected


def test_a_preset_fills_in_only_what_is_not_said() -> None:
    assert Ram(name="ram").rescale == 0.0
    assert Ram(name="ram_plus_soft", curve="linear").curve == "linear"
    assert Ram(name="ram").varied({"clip": 1.0}).rescale == 0.0
    assert Ram.model_validate({"name": "ram+s"}).name == "ram_plus_soft"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("ram_pls", "method.name: no method 'ram_pls'. Did you mean 'ram_plus'?"),
        ("zzz", "method.name: no method 'zzz'. Known: "),
        ("dare_ties", "no method 'dare_ties'. Here it is {name: dare, density: 0.5, then: {"),
        ("Dare-Linear", "Here it is {name: dare, density: 0.5, then: {name: task_arithmetic, scale: 1.0}};"),
        ({"name": "dare", "then": "nuslerp"}, "method.then.name: no method 'nuslerp'. Here it is slerp, "),
        ({"name": "ties", "weight": 0.5}, "method.weight: unknown field. An agent's weight stands at the agent: ag"),
        ({"name": "dare", "then": {"name": "ties", "weights": 1}}, "method.then.weights: unknown field. An agent's "),
        ({"rescale": 1}, "method.name: expected the name of a method, found None."),
        ({"name": 3}, "method.name: expected the name of a method, found 3."),
        (None, "method: expected a name or a mapping with a name, found None."),
        (["ram"], "method: expected a name or a mapping with a name, found ['ram']."),
        ({"name": "ram", "recale": 1}, "method.recale: unknown field. Did you mean 'rescale'?"),
        ({"name": "ram", "clip": -1}, "method.clip: Input should be greater than or equal to 0, found -1."),
        ({"name": "ram", "curve": "round"}, "method.curve: Input should be 'linear' or 'soft', found 'round'."),
        ({"name": "ram", "rescale": float("inf")}, "method.rescale: Input should be a finite number, found inf."),
        ({"name": "ram", "rescale": True}, "method.rescale: expected a number or text, not true or false"),
    ],
)
def test_a_wrong_method_is_told_with_its_path(written: Any, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        resolve_method(written)
    assert message in str(caught.value)


# the folder


def test_methods_are_listed_in_their_order_and_other_files_follow_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new method inside the project is one file."""
    ram = ("ram", "ram_plus", "ram_plus_soft", "ram_plus_auto")
    usual = ("task_arithmetic", "linear", "ties", "dare", "breadcrumbs", "breadcrumbs_ties", "della", "della_linear")
    others = ("disentangle", "sce", "slerp", "multislerp", "model_stock", "nearswap", "fisher", "regmean")
    whole = ("esm", "esm_vit", "wudi", "wudi_auto", "resmerge", "tsv_m", "iso_c", "iso_cts", "svc")
    names = (*ram, *usual, *others, *whole, "region", "calibrate")
    assert tuple(known_methods()) == names
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    for name in ("zeta", "alpha"):
        (tmp_path / f"{name}.py").write_text(PLUGIN.replace('"median"', f'"{name}"'))
    registry._built_in.cache_clear()
    try:
        assert tuple(known_methods()) == (*names, "alpha", "zeta")
    finally:
        registry._built_in.cache_clear()
        for name in ("zeta", "alpha"):
            sys.modules.pop(f"agentmerge.methods.{name}", None)
            vars(methods).pop(name, None)


@pytest.mark.parametrize("first", ["wrapper", "registry", "dare", "base"])
def test_no_file_of_methods_needs_another_to_be_imported_first(first: str) -> None:
    subprocess.run([sys.executable, "-c", f"import agentmerge.methods.{first}"], check=True)


# methods of others


def test_a_registered_method_is_usable_from_a_recipe(own_registry: None, tiny: Sources, tmp_path: Path) -> None:
    register(Halfway)
    merge(tiny.recipe("halfway"), tmp_path / "out")
    base = read_checkpoint(tiny.base)["model.norm.weight"].astype("f4")
    agents = [read_checkpoint(tiny.agents[n])["model.norm.weight"].astype("f4") for n in ("code", "memory", "tool")]
    tau = np.stack([agent - base for agent in agents]).sum(axis=0, dtype=np.float32) / np.float32(6)
    expected = (base + tau).astype(read_checkpoint(tiny.base)["model.norm.weight"].dtype)
    assert_same_bits(read_checkpoint(tmp_path / "out")["model.norm.weight"], expected, "halfway")


def test_a_name_can_not_be_taken_twice(own_registry: None) -> None:
    class Thief(Halfway):
        name: Literal["ram"] = "ram"  # type: ignore[assignment]

    register(Halfway)
    assert register(Halfway) is Halfway
    with pytest.raises(RecipeError, match=r"Thief: the name 'ram' belongs to agentmerge\.methods\.ram\.Ram already"):
        register(Thief)


def test_a_method_without_literal_names_is_refused(own_registry: None) -> None:
    class Nameless(Halfway):
        name: str = "nameless"  # type: ignore[assignment]

    with pytest.raises(RecipeError, match="field 'name' must be a Literal"):
        register(Nameless)


def test_a_method_of_an_installed_package_works_from_a_recipe(site: Path, tiny: Sources, tmp_path: Path) -> None:
    install(site, PLUGIN, "fake_plugin:Median")
    assert known_methods()["median"].__name__ == "Median"
    recipe = Recipe.parse(tiny.recipe({"name": "median", "share": 0.5}))
    record = merge(recipe, tmp_path / "out")
    assert record.recipe["method"].items() >= {"name": "median", "share": 0.5}.items()
    assert Recipe.parse(record.recipe) == recipe
    name = "model.norm.weight"
    stored = [read_checkpoint(tiny.agents[n])[name].astype("f4") for n in ("code", "memory", "tool")]
    base = read_checkpoint(tiny.base)[name]
    tau = np.median(np.stack(stored) - base.astype("f4"), axis=0).astype("f4")
    expected = (base.astype("f4") + np.float32(0.5) * tau).astype(base.dtype)
    assert_same_bits(read_checkpoint(tmp_path / "out")[name], expected, name)
    with pytest.raises(RecipeError, match=r"method\.sahre: unknown field\. Did you mean 'share'\?"):
        Recipe.parse(tiny.recipe({"name": "median", "sahre": 1}))


def test_a_package_that_is_installed_while_we_run_is_found_and_one_that_goes_is_forgotten(site: Path) -> None:
    os.utime(site, (0, 0))  # so that the clock's tick hides no change
    assert "median" not in known_methods()
    install(site, PLUGIN, "fake_plugin:Median")
    assert known_methods()["median"].__name__ == "Median"
    shutil.rmtree(site / "fake_plugin-1.0.dist-info")
    importlib.invalidate_caches()
    os.utime(site, (1, 1))
    assert "median" not in known_methods()


def test_a_method_of_an_installed_package_keeps_the_contract(site: Path) -> None:
    install(site, PLUGIN, "fake_plugin:Median")
    assert_contract(resolve_method("median"))


def test_an_installed_package_can_not_take_a_built_in_name(site: Path) -> None:
    install(site, PLUGIN.replace('"median"', '"ram"'), "fake_plugin:Median")
    assert known_methods()["ram"] is Ram


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fake_plugin:Gone", "entry point agentmerge.methods: it = fake_plugin:Gone can't be loaded"),
        ("fake_plugin:np", "entry point agentmerge.methods: it = fake_plugin:np is no MergeMethod subclass"),
        ("fake_plugin_2:X", "can't be loaded: No module named 'fake_plugin_2'"),
    ],
)
def test_a_broken_package_is_named_where_its_method_is_asked_for_and_stops_no_other(
    site: Path, value: str, message: str
) -> None:
    install(site, PLUGIN, value)
    with pytest.raises(RecipeError) as caught:
        resolve_method("median")
    assert message in str(caught.value)
    assert resolve_method("ram").name == "ram"


# the contract


SHORT = {"layer_power": 0, "matrices": ""}
REQUIRED: dict[str, dict[str, Any]] = {
    "region": {"agent": "code"},
    "wudi": {"steps": 10},
    **dict.fromkeys(("esm", "esm_vit"), SHORT),
}
"""Settings without which a method can't be used, or takes long."""

VARIANTS = {"breadcrumbs", "della_linear", "multislerp", "sce", "slerp"}
"""Others keep it that differ from them in a setting, in what they wrap, or in the number before a task vector."""
KNOWN = [{"name": name, **REQUIRED.get(name, {})} for name in sorted(known_methods())]
VARIED: list[dict[str, Any]] = [
    {"name": "ram_plus", "scope": "tensor"},
    {"name": "ram_plus_soft", "scope": "tensor"},
    {"name": "ram_plus", "threshold": 1e-3, "rescale": 0.7, "clip": 0.5},
    {"name": "ram", "threshold": 0},
    {"name": "ram_plus", "top": {"code": 0.02, "memory": 0.2, "tool": 1}, "shared": "winner"},
    {"name": "breadcrumbs", "density": 0.3, "gamma": 0.05, "rescale": True, "then": "ram_plus"},
    {"name": "della", "rescale": "norm", "density": 0.7, "epsilon": 0.29},
    {"name": "sce", "select_topk": 0.3, "floor": 0},
    {"name": "model_stock", "filter_wise": True},
    {"name": "slerp", "per": "column"},
]
FEW = {"slerp": 2, "nearswap": 1}
"""Agents of methods that take no three."""


WRAPPERS: list[dict[str, Any]] = [{}, {"name": "dare"}, {"name": "dare", "density": 1}, {"name": "calibrate"}]


def in_words(settings: dict[str, Any]) -> str:
    return " ".join(str(value) for value in settings.values())


@pytest.mark.parametrize("settings", [{"name": "wudi_auto"}, *VARIED], ids=in_words)
def test_methods_keep_the_contract(settings: dict[str, Any]) -> None:
    """Under rules and weights it holds, of every method, what it holds without; so a few are enough here."""
    assert_contract(resolve_method(settings), agents=FEW.get(settings["name"], 3))


@pytest.mark.parametrize("settings", [s for s in KNOWN if s["name"] not in VARIANTS], ids=in_words)
def test_every_known_method_keeps_the_contract_under_rules_and_weights(settings: dict[str, Any]) -> None:
    agents = FEW.get(settings["name"], 3)
    rules = [
        {"tensors": "*q_proj*", "skip": ["code", "tool"][:agents]},
        {"tensors": "lm_head*", "take": "code"},
        {"tensors": "model.norm*", "take": "base"},
    ]
    assert_contract(resolve_method(settings), rules=rules, weights=(0.5, 1.0, 1.7)[:agents], agents=agents)


@pytest.mark.parametrize("settings", KNOWN, ids=in_words)
@pytest.mark.parametrize(
    "wrapper", [{}, {"name": "dare"}, {"name": "dare", "density": 1}, {"name": "calibrate"}], ids=str
)
def test_before_anything_is_folded_every_method_tells_what_it_knows(
    settings: dict[str, Any], wrapper: dict[str, Any]
) -> None:
    method = resolve_method({**wrapper, "then": settings} if wrapper else settings)
    told = method.told(Survey(), ("code", "memory", "tool"))
    assert (told.learned, told.notes) == ({}, ())
    assert told.scales in (None, (1.0, 1.0, 1.0))


def test_rules_with_settings_of_their_own_keep_the_contract() -> None:
    rules = [{"tensors": "*.mlp.*", "threshold": 1e-3, "scope": "tensor"}, {"tensors": "lm_head*", "rescale": 0}]
    assert_contract(Ram(), rules=rules)


def test_a_method_without_a_kernel_keeps_the_contract() -> None:
    assert Halfway().kernel(random_stack(0), survey_of(Halfway(), [])) is None
    assert_contract(Halfway())


def test_a_method_that_must_see_whole_tensors_sees_them(tiny: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(Loudest, "merge", lambda self, s, survey: sizes.append((s.block.start, s.base.size)) or s.base)
    merge(tiny.recipe(Loudest(), run={"block_size": 4096}), tiny.base.parent / "out")
    assert sorted(sizes) == sorted((0, array.size) for array in read_checkpoint(tiny.base).values())


def test_a_whole_tensor_method_keeps_the_contract() -> None:
    assert_contract(Loudest())


class Broken(Halfway):
    """Breaks the contract as its field says."""

    name: Literal["broken"] = "broken"  # type: ignore[assignment]
    how: str = "mutates"

    def merge(self, stack: Stack, survey: Survey) -> Array:
        result = super().merge(stack, survey)
        if self.how == "mutates":
            stack.base[:1] += 1
        if self.how == "sees blocks":
            return result + np.float32(stack.block.start)
        if self.how == "order":
            return as_float32(stack.agents[-1]) if len(stack.base) % 2 else result.astype(np.float64)
        return result * np.float32(1.001) if self.how == "moves the base" else result


@pytest.mark.parametrize("how", ["mutates", "sees blocks", "moves the base", "order"])
def test_the_contract_catches_a_method_that_breaks_it(how: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        assert_contract(Broken(how=how))


def test_the_record_of_a_method_without_scales_has_none(tiny: Sources) -> None:
    assert {agent.scale for agent in probe(tiny.recipe(Halfway())).survey.agents.values()} == {None}


@pytest.mark.parametrize("name", [name for name, here in OTHERS.items() if not here.startswith("no ")])
def test_what_mergekits_name_is_here_can_be_merged_with(name: str) -> None:
    here, _, words = OTHERS[name].partition("; on a command line ")
    method = resolve_method(yaml.safe_load(here) if here.startswith("{") else here.partition(",")[0])
    if words:
        given = dict(word.split("=") for word in words.split() if "=" in word)
        plain = {field: value for field, value in given.items() if "." not in field}
        inner = nested({field: value for field, value in given.items() if "." in field})
        assert resolve_method({"name": words.split()[1], **plain}).varied(inner) == method
