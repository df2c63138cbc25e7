"""A GGUF file as a checkpoint in float32: `python -m bench.models.gguf FILE FOLDER`.

transformers reads it, dequantised, and draws a progress bar. Exit code 2 for a file that can't be
read, 1 where the folder can't be written, each with one line on stdout.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.models.stored import write_source
from tasks.loading.sources import sha256

LEAST_SHARE = 0.05
"""Number formats with a smaller share of the weights aren't named."""


def formats(file: Path) -> str:
    """The number formats of a file's weights, the most frequent first."""
    sizes = Counter[str]()
    for tensor in GGUFReader(file).tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    named = [name for name, size in sizes.most_common() if size >= LEAST_SHARE * sizes.total()]
    return ", ".join(named)


def convert(file: Path, folder: Path) -> None:
    """Write the file's weights, configuration, tokenizer and chat template, and a card. Raises
    ValueError for a file that can't be read."""
    given = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        stored_as = formats(file)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
    except Exception as error:  # readers of architectures raise any type
        raise ValueError(str(error)) from error
    # transformers refuses to save dequantised weights.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_source(folder, {"revision": sha256(file), "format": f"dequantised from {stored_as}"})


def main(file: str, folder: str) -> int:
    try:
        convert(Path(file), Path(folder))
    except ValueError as error:
        print(f"can't be read: {' '.join(str(error).split())}")
        return 2
    except Exception as error:  # OSError, SafetensorError
        print(f"can't be written to the cache: {' '.join(str(error).split())}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
