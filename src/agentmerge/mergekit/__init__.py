"""From a mergekit configuration to a recipe of ours.

Written from mergekit's documented behaviour (github.com/arcee-ai/mergekit: README, docs/merge_methods.md) in own words.
"""

from agentmerge.mergekit.recipe import Conversion, convert_mergekit

__all__ = ["Conversion", "convert_mergekit"]
