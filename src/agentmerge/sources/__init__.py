"""Who is read: the openers of every form a checkpoint comes in."""
