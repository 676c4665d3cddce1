"""The config.json and generation_config.json of each named model, as published.

Of the Qwen2.5 and Llama models it is the Instruct edition: the one that reinforcement learning starts from.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_COMMON: Json = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
_QWEN2: Json = _COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "transformers_version": "4.43.1",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def _qwen2(hidden: int, intermediate: int, layers: int, heads: tuple[int, int], window_layers: int) -> Json:
    """A Qwen2.5 config; `heads` are those of the queries and of the keys and values."""
    return _QWEN2 | {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "max_window_layers": window_layers,
        "num_attention_heads": heads[0],
        "num_hidden_layers": layers,
        "num_key_value_heads": heads[1],
    }


_TINY_OWN: Json = {"bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 2048, "vocab_size": 2048}
_7B_OWN: Json = {"sliding_window": 131072, "tie_word_embeddings": False, "vocab_size": 152064}

CONFIGS: dict[str, Json] = {
    "tiny": _qwen2(192, 512, 4, (6, 2), 4) | _TINY_OWN,
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, (14, 2), 21),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, (12, 2), 21),
    "qwen2.5-3b": _qwen2(2048, 11008, 36, (16, 2), 70),
    "qwen2.5-7b": _qwen2(3584, 18944, 28, (28, 4), 28) | _7B_OWN,
    "llama-3.2-3b": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 24,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "transformers_version": "4.45.0.dev0",
        "vocab_size": 128256,
    },
    "qwen3-30b-a3b": _COMMON
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 151643,
        "decoder_sparse_step": 1,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "transformers_version": "4.51.0",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}

_QWEN_TOKENS: Json = {"bos_token_id": 151643, "eos_token_id": [151645, 151643], "pad_token_id": 151643}
_QWEN2_SAMPLING: Json = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
_QWEN2_GENERATION: Json = _QWEN_TOKENS | _QWEN2_SAMPLING | {"transformers_version": "4.37.0"}

GENERATION_CONFIGS: dict[str, Json] = {
    "tiny": {"bos_token_id": 0, "eos_token_id": 1, "transformers_version": "4.43.1"},
    "qwen2.5-0.5b": _QWEN2_GENERATION | {"repetition_penalty": 1.1},
    "qwen2.5-1.5b": _QWEN2_GENERATION | {"repetition_penalty": 1.1},
    "qwen2.5-3b": _QWEN2_GENERATION | {"repetition_penalty": 1.05},
    "qwen2.5-7b": _QWEN2_GENERATION | {"repetition_penalty": 1.05},
    "llama-3.2-3b": {
        "bos_token_id": 128000,
        "do_sample": True,
        "eos_token_id": [128001, 128008, 128009],
        "temperature": 0.6,
        "top_p": 0.9,
        "transformers_version": "4.45.0.dev0",
    },
    "qwen3-30b-a3b": _QWEN_TOKENS
    | {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"},
}
