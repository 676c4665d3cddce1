"""Long-context question answering after RULER and MemAgent: documents, samples, the loop that reads them, scores."""
