"""Bytes: safetensors files read and written at offsets, staged, journaled."""
