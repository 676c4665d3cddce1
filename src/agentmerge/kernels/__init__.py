"""Fused twins of what is slow, proven equal to the definitions."""
