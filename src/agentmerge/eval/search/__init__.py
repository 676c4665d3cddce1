"""Questions that are answered with a search engine, after ZeroSearch: questions, retrievers, the loop, scores."""
