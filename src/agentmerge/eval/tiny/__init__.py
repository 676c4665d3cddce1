"""The tasks that the tiny agents of the demo were trained on: prompts without end, answers that a few lines score."""
