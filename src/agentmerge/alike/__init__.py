"""Untidy checkpoints made alike: numbers, names, heads, rows, tokens, configs."""
