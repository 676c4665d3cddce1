"""What a full probe counts: the question, and the definition of every count."""
