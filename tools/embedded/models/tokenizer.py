"""The tokenizers of the embedded models, with a generator's words, and pieces for other text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PIECES = "th he in er an re on at en nd ti es or te ed is it al ar st nt ng ing ion ly 's".split()
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
LIKELY = -8.0
"""Log-probability of a word."""


def build_tokenizer(words: list[str], first: list[str], second: list[str]) -> Any:
    """Whole words as one token, names as two, any other text as pieces, letters and bytes."""
    marks = [word for word in words if not word[0].isalnum()]
    whole = [*(f"▁{word}" for word in words), *marks]
    names = [*(f"▁{syllable}" for syllable in first), *second]
    return unigram([(LIKELY, whole), (LIKELY, names)], single="$A </s>", pair="$A </s> $B </s>")


def unigram(
    groups: Sequence[tuple[float, Sequence[str]]],
    single: str,
    pair: str,
    prepend: str = "always",
    **special: str,
) -> Any:
    """A unigram tokenizer of these groups of pieces, each with a score, and of pieces for any other
    text: parts of English words, letters, bytes. The score of a segmentation is the sum of its
    pieces' scores, so fewer and longer pieces win. `single` and `pair` are templates of one and
    of two texts; `special` are more special tokens (`bos_token="<s>"`)."""
    special = {**SPECIAL, **special}
    scores = dict.fromkeys(special.values(), 0.0) | {"<unk>": -100.0}
    for score, group in (
        *groups,
        (-14.0, [*PIECES, *(f"▁{piece}" for piece in PIECES)]),
        (-16.0, ["▁", "\n", *map(chr, range(33, 127))]),
        (-30.0, [f"<0x{byte:02X}>" for byte in range(256)]),
    ):
        for piece in group:
            scores.setdefault(piece, score)
    numbers = [(token, number) for number, token in enumerate(special.values())]
    core = Tokenizer(models.Unigram(list(scores.items()), unk_id=2, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    core.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=prepend), decoders.Fuse()]
    )
    core.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[one for one in numbers if one[0] in single]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
        **special,
    )
