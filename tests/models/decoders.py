"""A tiny random decoder of each type: two layers, and a window of 8 tokens where it has one."""

from bench.models.checkpoints import random_weights
from bench.models.decoder import DecoderFamily

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"]
LAYERS = {"layer_types": MIXED, "sliding_window": 8}
CONFIGS = {
    "cohere2": LAYERS | {"logit_scale": 0.2},
    "gemma": {"head_dim": 16},
    "gemma2": LAYERS | {"head_dim": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gemma3_text": LAYERS | {"head_dim": 8, "query_pre_attn_scalar": 8},
    "glm": {"head_dim": 8, "pad_token_id": 0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt_neox": {},
    "gpt_oss": LAYERS
    | {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 0.2},
    "llama": {},
    "mistral": {"sliding_window": 8},
    "nemotron": {"head_dim": 8},
    "olmo2": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {"sliding_window": 8},
    "qwen2": LAYERS | {"use_sliding_window": True},
    "qwen3": {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "stablelm": {},
    "starcoder2": {"sliding_window": 8},
}


def tiny(kind, method, **more):
    """The family of a model of this type, with weights large enough for attention to matter."""
    config = {"model_type": kind, **SIZES, **CONFIGS.get(kind, {}), **more}
    model = random_weights(DecoderFamily.architecture_of(kind), config, seed=0)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.mul_(5)
    return DecoderFamily(model, None, method)
