"""Four tiny real agents of one base, the tasks they were trained on, and what the demo does with three of them."""
