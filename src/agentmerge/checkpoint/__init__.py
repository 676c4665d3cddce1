"""Bytes: safetensors in, safetensors out, side files beside them."""
