"""A GGUF file of a tiny Llama with random weights."""

from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, WORDS = 128, 2, 2, ["a", "b", "c", "ab", "Ġ", "Ġa", "</s>"]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Name in GGUF → a matrix."""
    draw = np.random.default_rng(seed)
    sizes = {"attn_q": WIDTH, "attn_k": WIDTH, "attn_v": WIDTH, "attn_output": WIDTH,
             "ffn_gate": WIDTH, "ffn_up": WIDTH, "ffn_down": WIDTH}  # fmt: skip
    matrices = {f"blk.{i}.{name}": size for i in range(LAYERS) for name, size in sizes.items()}
    matrices["token_embd"] = len(WORDS)
    return {
        f"{name}.weight": draw.normal(size=(rows, WIDTH)).astype(np.float32)
        for name, rows in matrices.items()
    }


def write(path: Path, matrices: dict[str, np.ndarray], context: int = 64) -> Path:
    """The file, with its matrices in Q8_0."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(WORDS))
    writer.add_eos_token_id(WORDS.index("</s>"))
    writer.add_bos_token_id(WORDS.index("</s>"))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, matrix in matrices.items():
        writer.add_tensor(name, gguf.quants.quantize(matrix, kind), raw_dtype=kind)
    norms = [f"blk.{i}.{name}_norm.weight" for i in range(LAYERS) for name in ("attn", "ffn")]
    for name in [*norms, "output_norm.weight"]:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
