"""LongBench's metrics of Chinese answers (metrics.py), on words that jieba finds.

jieba is in the extra `chinese`. By default it reads a cached dictionary from the folder of
temporary files, which any user may have written; here it is built from the package's file.
"""

from __future__ import annotations

import functools
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.metrics import rouge

PACKAGE = "jieba"
PUNCTUATION = frozenset(
    string.punctuation
    + "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』"
    "【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏"
)
"""What the official code deletes: `《` is not among it."""


@functools.cache
def _tokenizer() -> Any:
    import jieba

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


# A row is scored twice, for the official figures and for the interval.
@functools.lru_cache(maxsize=4096)
def words(text: str) -> tuple[str, ...]:
    return tuple(_tokenizer().cut(text))


def qa_f1(prediction: str, references: Sequence[str]) -> float:
    """F1 of the bags of words without punctuation and blanks, the best over references."""
    predicted = _bag(prediction)

    def f1(right: Counter[str]) -> float:
        shared = (predicted & right).total()
        return 2 * shared / (predicted.total() + right.total()) if shared else 0.0

    return max(f1(_bag(reference)) for reference in references)


def _bag(text: str) -> Counter[str]:
    plain = (
        "".join("".join(c for c in word.lower() if c not in PUNCTUATION).split())
        for word in words(text)
    )
    return Counter(word for word in plain if word)


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """ROUGE-L's F of `rouge` 1.0.1 on the words, the best over references."""
    return rouge.longbench(" ".join(words(prediction)), [" ".join(words(r)) for r in references])
