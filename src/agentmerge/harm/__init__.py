"""WHAT AN AGENT DAMAGES of what its base could do, and what to do about it; only model.py imports torch."""
