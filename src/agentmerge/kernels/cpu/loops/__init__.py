"""The compiled loops: every file that imports numba. Imported late, by the calls beside it."""
