"""The map: one file per paper, each with its numpy definition."""
