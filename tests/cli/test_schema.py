"""agentmerge schema, as a user calls it."""

import json

import pytest


@pytest.mark.parametrize(("kind", "field"), [("recipe", "agents"), ("record", "rounding"), ("survey", "answers")])
def test_each_schema_is_json_and_describes_its_fields(run, kind, field):
    ran = run("schema", kind)
    assert ran.code == 0
    assert field in json.loads(ran.out)["properties"]


def test_the_recipe_schema_knows_every_method_and_its_settings(run):
    schema = json.loads(run("schema").out)
    assert {"ram", "ram+", "ram_plus_soft"} <= set(schema["properties"]["method"]["anyOf"][0]["enum"])
    assert "rescale" in schema["$defs"]["Ram"]["properties"]
