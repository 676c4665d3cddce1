"""From the recipes of other merging tools to ours. Knows no tensors, and no file but the one it is given.

Written from mergekit's documented behaviour (github.com/arcee-ai/mergekit: README, docs/merge_methods.md) in own words.
"""

from agentmerge.convert.mergekit import Conversion, convert_mergekit

__all__ = ["Conversion", "convert_mergekit"]
