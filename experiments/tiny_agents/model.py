"""The tiny Llama and its tokenizer: one token per printable ASCII character."""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<eos>", "<unk>")
CHARACTERS = ("\n", *map(chr, range(32, 127)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Every character is a token; nothing is added to a prompt."""
    words = {word: i for i, word in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def build_model(seed: int, *, hidden: int = 128, layers: int = 4, spread: float = 0.04) -> LlamaForCausalLM:
    """A Llama of about 1.06 M parameters; `spread` is the standard deviation of its first weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=spread,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        attention_dropout=0.0,
    )
    return LlamaForCausalLM(config)
