"""The generators, a file each; this table is their door. A generator's module is imported when it is asked for."""

GENERATORS = ("openai", "hf", "vllm", "sglang", "replay")
