"""Five tiny real agents, the tasks they were trained on, and what the demo does with them."""
