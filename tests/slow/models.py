"""Tiny random models of transformers, their tokenizer and their rollouts."""

import json

import pytest

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz_<>"
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 4}
KINDS = {
    "untied": ("LlamaConfig", {"tie_word_embeddings": False}),
    "tied": ("Qwen2Config", {"tie_word_embeddings": True}),
    "experts": ("Qwen3MoeConfig", {"tie_word_embeddings": False, **EXPERTS}),
}
EXAMPLES = [
    {"prompt": "ask_me", "response": "no"},
    {"prompt": [{"role": "user", "content": "hi"}], "response": "well_met"},
    {"prompt": "a_much_longer_question_than_before", "response": "so_be_it"},
    {"prompt": "x", "response": "yz"},
    {"prompt": "once_more", "response": "fine"},
]


def make_model(folder, kind="untied", dtype="float32"):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    name, settings = KINDS[kind]
    if not hasattr(transformers, name):
        pytest.skip(f"no {name} in transformers {transformers.__version__}")
    torch.manual_seed(0)
    config = getattr(transformers, name)(**SIZES, **settings, initializer_range=0.3)
    transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer(transformers).save_pretrained(folder)
    return folder


def tokenizer(transformers):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "<unk>", *LETTERS]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", unk_token="<unk>")
    fast.chat_template = TEMPLATE
    return fast


def make_data(folder, examples=EXAMPLES):
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(example) + "\n" for example in examples))
    return path


def ids(example):
    """The tokens of one example by hand, and where its response begins."""
    prompt = example["prompt"]
    if isinstance(prompt, str):
        head = [0] + [2 + LETTERS.index(letter) for letter in prompt]
    else:
        text = "".join(f"<{message['role']}>{message['content']}" for message in prompt) + "<assistant>"
        head = [2 + LETTERS.index(letter) for letter in text]
    return head + [2 + LETTERS.index(letter) for letter in example["response"]], len(head)
