"""THE DIAGONAL FISHER of an agent on its own prompts and responses. Knows no merging; only fisher.py knows torch."""
