"""What lies beside the weights: configs, tokenizers, cards."""
