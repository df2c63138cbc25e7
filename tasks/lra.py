"""LRA, Long Range Arena (Tay et al., 2021, arXiv:2011.04006): five classification tasks over long
sequences, read token by token, byte by byte or pixel by pixel.

    task        ids                                                   id 0
    ListOps     [MIN [MAX [MED [SM = 1…4, digits 0…9 = 5…14, X = 15   padding
    Text        byte + 1                                              padding
    Retrieval   byte + 1, of each text's first 10,000 bytes           padding
    Image       grey level 0…255                                      black
    Pathfinder  grey level 0…255                                      black

The official ListOps ids follow the order of a Python set and can't be reproduced; these are fixed.
Black isn't padding: a mask marks the valid ids (`lra_mask: explicit`). Nyströmformer's harness and
those derived from it use `id != 0` as the mask, like `lra_mask: legacy`.

Accuracy is over all rows. The official evaluation of Image, Pathfinder and Retrieval drops the rows
that don't fill its last batch of 256, 512 or 32, so its figures are over slightly fewer.

ListOps, Retrieval and Pathfinder come in one tar, lra_release.gz, which is not on any hub:
https://storage.googleapis.com/long-range-arena/lra_release.gz (unverified).

No token of LRA is a query. The only VIP token is the first: LRA's encoders classify from that
position, so VCC must not compress it. Predictions are class numbers as text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import Data, DataError, Encoded, Loaded, Row, Tokenizer
from tasks.generators import listops
from tasks.loading import lra_files
from tasks.loading.reader import Reader

MASKS = ("explicit", "legacy")
RETRIEVAL_BYTES = 10_000
LISTOPS = {
    token: number
    for number, token in enumerate("[MIN [MAX [MED [SM 0 1 2 3 4 5 6 7 8 9 X".split(), start=1)
}


@dataclass(frozen=True)
class Lra(Reader):
    """One task of LRA.

    embedded       one of the five tasks; embedded rows have the same layout
    size           side of an image in pixels
    max_length     exclusive bound of an embedded ListOps tree, if the requested length has room for
                   it
    slices         split → its part of the rows in the files, as fractions
    contour        dashes in an embedded Pathfinder path: 14 is the hard variant
    distractors    whether embedded Pathfinder images have short paths in addition to the two
    plain          share of an embedded review's opinions that a single word decides
    shuffled       draw n rows from the whole split: IMDb lists all rows of one class first
    embedded_rows  number of embedded rows if n isn't given
    lra_mask       explicit, or legacy: ids of 0 are padding, black pixels too
    """

    size: int = 0
    max_length: int = 2000
    contour: int = 14
    distractors: bool = True
    plain: float = 0.0
    slices: Mapping[str, Any] = field(default_factory=dict, hash=False)
    shuffled: bool = False
    embedded_rows: int = 128
    lra_mask: str = "explicit"
    default_split: str = "test"

    kinds: ClassVar[Iterable[str]] = tuple(lra_files.READERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("lra_mask", MASKS)
        if not self.labels or not self.vocabulary:
            raise ValueError(f"{self.name}: labels and vocabulary must be given")

    @property
    def official(self) -> str:
        return f"{self.benchmark}/{self.embedded}"

    # --- rows ---------------------------------------------------------------------------------

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first n rows of a split; None takes all, or `embedded_rows`. Embedded rows depend on
        the seed, and texts and trees also on the length. Raises DataError."""
        split = self.requested_split(data, n)
        if data.source == "embedded":
            return self._generated(split, n or self.embedded_rows, length, seed)
        paths = [path for path, _ in self.parts(data, split, length)]
        if self.embedded in ("listops", "retrieval"):
            paths = paths[:1]  # one file per split; there may be a compressed copy of it
        file_rows = lra_files.READERS[self.embedded](paths, self.labels or 0, self.size)
        numbered, available = self._select(file_rows, split, n)
        if not available:
            raise DataError(f"{paths[0]} has no rows of split '{split}'; expected one or more")
        rows = [
            self._row(f"{split}-{at:06d}", row.label, row.document, row.second, row.where)
            for at, row in numbered
        ]
        return Loaded(rows, split, lra_files.sha256(paths, self.embedded), available)

    def zip_member(self, path: Path, split: str) -> str:
        return ""

    def _select(
        self, file_rows: Iterable[lra_files.FileRow], split: str, n: int | None
    ) -> tuple[list[tuple[int, lra_files.FileRow]], int]:
        """The requested rows with their numbers in the split, and the size of the split. All rows
        are read, which validates their columns and labels."""
        if not self.shuffled and split not in self.slices:
            remaining = enumerate(file_rows)
            selected = list(islice(remaining, n))
            return selected, len(selected) + sum(1 for _ in remaining)
        every = list(file_rows)
        begin, end = (round(len(every) * part) for part in self.slices.get(split, (0, 1)))
        numbered = list(enumerate(every[begin:end]))
        if self.shuffled and n is not None:
            random.Random(0).shuffle(numbered)
        return numbered[:n], len(numbered)

    def _row(self, row_id: str, label: int, document: str, second: str | None, where: str) -> Row:
        if self.embedded == "listops":
            for token in listops.tokens(document):
                if token not in LISTOPS:
                    raise DataError(f"{where}: no ListOps token '{token}'")
        return Row(row_id, "", document, (str(label),), second)

    def _generated(self, split: str, n: int, length: int, seed: int) -> Loaded:
        from tasks.generators import lra_rows

        digest = hashlib.sha256(f"{self.embedded} {lra_rows.VERSION}".encode())
        rows = []
        samples = lra_rows.GENERATORS[self.embedded](self, split, length, seed)
        for index, sample in enumerate(islice(samples, n)):
            row = self._row(f"embedded-{split}-{seed}-{index:03d}", *sample, f"row {index}")
            rows.append(row)
            digest.update(repr((row.id, row.document, row.second, row.references)).encode())
        return Loaded(rows, split, digest.hexdigest(), max(n, self.embedded_rows))

    # --- encoding -----------------------------------------------------------------------------

    def encode(self, row: Row, tokenizer: Tokenizer | None, length: int) -> Encoded:
        """At most `length` of LRA's own ids, truncated at the end; no tokenizer is used. Both texts
        of a pair are encoded in the same way, each with its `tokens_in`."""
        second = None if row.second is None else self._encoded(row.second, length)
        return self._encoded(row.document, length, second)

    def _encoded(self, document: str, length: int, second: Encoded | None = None) -> Encoded:
        ids = self.ids_of(document)
        tokens_in = len(ids)
        if self.embedded == "retrieval":
            ids = ids[:RETRIEVAL_BYTES]
        ids = ids[-length:] if self.truncation_side == "left" else ids[:length]
        vip = [True] + [False] * (len(ids) - 1)
        valid = [number != 0 for number in ids] if self.lra_mask == "legacy" else None
        return Encoded(ids, vip, tokens_in, valid, second)

    def ids_of(self, document: str) -> list[int]:
        """All ids of a document."""
        if self.embedded == "listops":
            return [LISTOPS[token] for token in listops.tokens(document)]
        if self.embedded in ("text", "retrieval"):
            return [byte + 1 for byte in document.encode()]
        return list(document.encode("latin-1"))
