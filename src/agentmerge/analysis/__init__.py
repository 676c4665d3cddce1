"""What a full probe found, in words: numbers with names, and advice with its reasons."""
