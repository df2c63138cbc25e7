"""The tokenizers of the embedded models: a generator's words, and a way to spell other text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PIECES = "th he in er an re on at en nd ti es or te ed is it al ar st nt ng ing ion ly 's".split()
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
LIKELY = -8.0
"""Score of a word."""


def unigram(
    groups: Sequence[tuple[float, Sequence[str]]],
    single: str,
    pair: str,
    prepend: str = "always",
    **special: str,
) -> Any:
    """Pieces of these groups, each with a score, then those that any text is spelled with: some
    pieces of English, letters, bytes. A segmentation's score is the sum of its pieces', so fewer
    and longer pieces win. `single` and `pair` are templates of what goes around texts; `special`
    are more special tokens (`bos_token="<s>"`)."""
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
