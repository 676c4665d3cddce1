"""THE DIAGONAL FISHER of an agent on its own prompts and responses; only fisher.py imports torch."""
