"""What a checkpoint can do: prompts from tasks, answers as text, and scores with their standard errors.

Text is what the two halves share: `generate` makes answers and needs torch, `score` reads them and needs nothing.
"""
