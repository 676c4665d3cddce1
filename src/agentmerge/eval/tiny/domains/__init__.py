"""The four domains of the shipped agents: one file each, a generator and a scorer."""
