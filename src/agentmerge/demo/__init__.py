"""Four tiny real agents of one base, three of which the demo merges, and the tasks that they were trained on."""
