"""Synthetic bases and agents in the shapes of real models, to try full size without a download."""
