"""Models on the Hugging Face hub: looked at from afar, fetched into its cache, and pushed."""
