"""Agents as what they changed of their base: packed into one file, and made of it again."""
