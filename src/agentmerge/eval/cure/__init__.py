"""CURE's way to evaluate programs and the unit tests that a model writes for them: its words, and its arithmetic."""
