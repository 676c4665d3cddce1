"""agentmerge methods, as a user calls it."""

import json

from agentmerge.methods.registry import known_methods


def test_every_method_is_listed_with_its_defaults(run):
    ran = run("methods")
    assert ran.code == 0
    assert set(known_methods()) <= set(json.loads(run("methods", "--json").out))
    assert "rescale 0.1" in ran.out


def test_one_method_is_explained_with_formula_source_and_settings(run):
    out = run("methods", "ram+").out
    for word in ("arxiv.org/abs/2601.13572", "lambda[t] = 1 + rescale", "clip = 2.0", "scope = 'model'"):
        assert word in out


def test_an_unknown_method_gets_a_hint(run):
    ran = run("methods", "rma")
    assert ran.code == 2
    assert "Did you mean 'ram'?" in ran.err
