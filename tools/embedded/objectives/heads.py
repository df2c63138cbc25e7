"""An encoder with a span and a choice head, on rows that mark answers and targets of attention
(tools.embedded.rows.marked)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bench.models.base import Spec
from bench.models.checkpoints import load_tokenizer, load_weights
from bench.models.heads import RobertaChoice, RobertaSpan
from bench.request import plugins
from methods.base import AttentionCall, Layer, Method, SequenceInfo
from tools.embedded.models import align, distance
from tools.embedded.models.roberta import RobertaForBoth
from tools.embedded.objectives.base import Objective

EOS = 1


class Batch(NamedTuple):
    """Ids [B, n], VIP mask [B, n], kinds [B] (-1: a row of choices), right choices [B], ends [c, 3]
    (row, first and last token of a right answer), looks [l, 6] (row, layer, from, to, and the heads
    that have to look there: the first, and the last + 1; 0, 0: any)."""

    ids: Tensor
    vip: Tensor
    kinds: Tensor
    right: Tensor
    ends: Tensor
    looks: Tensor


class Heads(Objective):
    """Cross-entropy of the answers of both heads, which share an encoder. Guidance asks the layers
    for the looks of a row."""

    right_weight = 0.05

    def __init__(self, recipe: Any, start: Path, rank: int = 0) -> None:
        super().__init__(recipe, start, rank)
        self.seed = recipe.seed
        self.model, _ = load_weights(RobertaForBoth, Spec(start.name, start), torch.float32)
        self.tokenizer = load_tokenizer(start)
        self.span = RobertaSpan(self.model, self.tokenizer, self.method)
        self.choice = RobertaChoice(self.model, self.tokenizer, self.method)
        marks = {mark: self.tokenizer.convert_tokens_to_ids(mark) for mark in recipe.marks}
        self.span.marks = self.choice.marks = self.marks = marks

    @torch.no_grad()
    def begin_stage(self, stage: Any, resumed: bool) -> None:
        """Set the heads that a stage names in `align` and `distance` (see these modules in
        tools.embedded.models): `align` by states on both sides of right looks within the query."""
        super().begin_stage(stage, resumed)
        for part in () if resumed else stage.get("align", ()):
            make = plugins.load(part.make)
            left: list[Tensor] = []
            right: list[Tensor] = []
            for first in range(0, part.rows, 32):
                rows = [make(first + row, self.seed - 1, **part.options) for row in range(32)]
                batch = self.encode(rows)
                hidden = self.states(align.Below(part.layer), batch)
                row, layer, start, end = batch.looks[:, :4].unbind(1)
                here = (layer == part.layer) & (end > 0)
                here &= batch.vip[row, start] & batch.vip[row, end]
                left.append(hidden[row[here], start[here]])
                right.append(hidden[row[here], end[here]])
            layers: Any = self.span.layers
            for head in part.heads:
                align.align(
                    layers[part.layer].block, head, torch.cat(left), torch.cat(right), part.gain
                )
        for part in () if resumed else stage.get("distance", ()):
            distance.begin(self, part, self.seed - 1)

    def batches(self, stage: Any, step: int) -> Iterator[tuple[str, Batch]]:
        """Batches of rows of one of the stage's generators (`rows`) each, in turn."""
        generators = [one for one in stage.rows for _ in range(one.get("weight", 1))]
        while True:
            one = generators[step % len(generators)]
            make, options = plugins.load(one.make), dict(one.options)
            count = max(1, stage.batch_tokens // (options["tokens"] + 32))
            rows = [make(step * count + row, self.seed, **options) for row in range(count)]
            yield one.name, self.encode(rows)
            step += 1

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Rows end with end-of-sequence tokens: padding would cost the fused attention."""
        texts = [text for row in rows for text in (row.query, row.document)]
        coded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        longest = 1 + max(
            len(coded.input_ids[i]) + len(coded.input_ids[i + 1]) for i in range(0, len(texts), 2)
        )
        ids = torch.full((len(rows), longest), EOS)
        vip = torch.zeros_like(ids, dtype=torch.bool)
        ends, looks = [], []
        for at, row in enumerate(rows):
            query, document = coded.input_ids[2 * at : 2 * at + 2]
            ids[at, : len(query) + len(document)] = torch.tensor(query + document)
            vip[at, : len(query)] = True
            token = [0] * (len(row.query) + len(row.document))  # for each character
            for part, shift, first in ((0, 0, 0), (1, len(row.query), len(query))):
                for number, (begin, end) in enumerate(coded.offset_mapping[2 * at + part]):
                    token[shift + begin : shift + end] = [first + number] * (end - begin)
            ends += [(at, token[first], token[last]) for first, last in row.spans]
            looks += [
                (at, look.layer, token[look.start], token[look.end], *look.heads)
                for look in row.looks
            ]
        kinds, right = (
            torch.tensor([getattr(row, name) for row in rows]) for name in ("kind", "right")
        )
        return Batch(ids, vip, kinds, right, torch.tensor(ends).view(-1, 3), torch.tensor(looks))

    def states(self, method: Method, batch: Batch) -> Tensor:
        """The encoder's states [B, n, D] with this method in it."""
        self.span.method = method
        return self.span.encode(batch.ids, SequenceInfo())

    def loss(self, batch: Batch, guidance: float) -> tuple[Tensor, float]:
        """The share is that of rows with a right answer; if a row has several, that of answers."""
        guided = Guided(self.method, batch.looks if guidance else None)
        self.span.method = self.choice.method = guided
        sequence = SequenceInfo(vip=batch.vip)
        if batch.kinds[0] < 0:
            logits = self.choice.classify(batch.ids, sequence)
            loss = cross_entropy(logits, batch.right)
            right = (logits.argmax(-1) == batch.right).float().mean()
        else:
            loss, right = self._span_loss(batch, sequence)
        if guidance:
            loss = loss + guidance * guided.missed
        return loss, right.item()

    def _span_loss(self, batch: Batch, sequence: SequenceInfo) -> tuple[Tensor, Tensor]:
        hidden = self.span.encode(batch.ids, sequence)
        kinds = self.span._kinds(hidden, sequence)
        loss = cross_entropy(kinds, batch.kinds)
        right = kinds.argmax(-1) == batch.kinds
        if not len(batch.ends):
            return loss, right.float().mean()
        row, ends = batch.ends[:, 0], batch.ends[:, 1:]
        logits = self.span._ends(hidden, batch.ids, sequence)[row]  # [c, 2, n]
        loss = loss + cross_entropy(logits.flatten(0, 1), ends.flatten())
        if len(row) > len(row.unique()):  # right: among the n best of a row with n answers
            most = int(torch.bincount(row).max())
            first = (logits.topk(most, -1).indices == ends[..., None]).any(-1)
            return loss, first.all(-1).float().mean()
        hit = torch.ones_like(right)
        hit[row] = (logits.argmax(-1) == ends).all(-1)
        return loss, (right & hit).float().mean()


class Guided(Method):
    """Another method, for layers that see every token. `missed` is the mean of -log of the
    attention weight from a look's start to its end: the mean weight over heads, or the weight of
    each head that the look names."""

    def __init__(self, inner: Method, looks: Tensor | None) -> None:
        self.inner, self.looks = inner, looks
        self.missed = torch.zeros(())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self.inner.attend(query, key, value, call)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if self.looks is None:
            return self.inner.encode(layers, hidden, sequence)
        missed = []
        for number, layer in enumerate(layers):
            looks = self.looks[self.looks[:, 1] == number]
            if len(looks):
                missed.append(_missed(layer, hidden, looks))
            hidden = layer(hidden, sequence)
        self.missed = torch.cat(missed).mean()
        return hidden


def _missed(layer: Layer, hidden: Tensor, looks: Tensor) -> Tensor:
    """-log of the weight of each of a layer's looks, from the states that the layer reads."""
    row, start, end = looks[:, 0], looks[:, 2], looks[:, 3]
    place = torch.zeros_like(row)  # index of a look among those of its row
    for one in row.unique():
        place[row == one] = torch.arange(int((row == one).sum()))
    starts = torch.zeros(len(hidden), int(place.max()) + 1, dtype=torch.long)
    starts[row, place] = start
    queries = hidden.gather(1, starts[..., None].expand(-1, -1, hidden.shape[-1]))
    weights = layer.scores(queries, SequenceInfo(), hidden, SequenceInfo()).softmax(-1)
    weights = weights.transpose(1, 2)[row, place, :, end]  # [looks, H]
    first, last = looks[:, 4:].unbind(1)
    head = torch.arange(weights.shape[1])
    named = ((head >= first[:, None]) & (head < last[:, None])).to(weights.dtype)
    of_named = ((weights + 1e-6).log() * named).sum(1) / named.sum(1).clamp(min=1)
    return -torch.where(last > 0, of_named, (weights.mean(1) + 1e-6).log())
