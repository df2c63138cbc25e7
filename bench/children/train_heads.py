"""Train a small encoder with a span and a choice head on rows of a generator: `python -m
bench.children.train_heads RECIPE`.

A recipe (YAML) says where rows come from, what the model starts as, the method in it, the stages
of the curriculum; words behind it change it (bench.children.recipes). Work is saved once a minute,
and the same command goes on from there after a kill. `python -m bench.children.check_heads RECIPE`
adds scores to the card.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn.functional import cross_entropy

from bench import plugins
from bench.children import curriculum, recipes
from bench.children.curriculum import Lesson
from bench.models.base import Spec
from bench.models.embedded import align, distance
from bench.models.embedded.new_roberta import RobertaForBoth
from bench.models.heads import RobertaChoice, RobertaSpan
from bench.models.hf import load_tokenizer, load_weights
from methods.base import Call, Layer, Method, Sequence

EOS = 1


class Batch(NamedTuple):
    """Ids [B, n], VIP mask [B, n], kinds [B] (-1: a row of choices), right choices [B], ends
    [c, 3] (row, first and last token of a right answer), looks
    [l, 6] (row, layer, from, to, and of which heads each has to: the first, and the last + 1)."""

    ids: Tensor
    vip: Tensor
    kinds: Tensor
    right: Tensor
    ends: Tensor
    looks: Tensor


class Looking(Method):
    """Another method's walk that notes how far its layers are from looking where they should:
    `missed` is the mean of -log of the share of attention that goes from a look's start to its end:
    of the mean over heads, or of each of those that a look names. For layers
    that see every token."""

    def __init__(self, inner: Method, looks: Tensor | None) -> None:
        self.inner, self.looks = inner, looks
        self.missed = torch.zeros(())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        return self.inner.attend(query, key, value, call)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        if self.looks is None:
            return self.inner.encode(layers, hidden, sequence)
        missed = []
        for number, layer in enumerate(layers):
            here = self.looks[self.looks[:, 1] == number]
            if len(here):
                missed.append(_missed(layer, hidden, here))
            hidden = layer(hidden, sequence)
        self.missed = torch.cat(missed).mean()
        return hidden


def _missed(layer: Layer, hidden: Tensor, looks: Tensor) -> Tensor:
    row, start, end = looks[:, 0], looks[:, 2], looks[:, 3]
    most = int(torch.bincount(row).max())
    place = torch.zeros_like(row)
    for one in row.unique():
        place[row == one] = torch.arange(int((row == one).sum()))
    asked = torch.zeros(len(hidden), most, dtype=torch.long)
    asked[row, place] = start
    queries = hidden.gather(1, asked[..., None].expand(-1, -1, hidden.shape[-1]))
    shares = layer.scores(queries, Sequence(), hidden, Sequence()).softmax(-1)
    found = shares.transpose(1, 2)[row, place, :, end]  # [looks, H]
    first, last = looks[:, 4:].unbind(1)
    head = torch.arange(found.shape[1])
    chosen = ((head >= first[:, None]) & (head < last[:, None])).to(found.dtype)
    apart = ((found + 1e-6).log() * chosen).sum(1) / chosen.sum(1).clamp(min=1)
    return -torch.where(last > 0, apart, (found.mean(1) + 1e-6).log())


def batches(stage: Any, tokenizer: Any, seed: int, step: int) -> Iterator[tuple[str, Batch]]:
    """The batches of a stage from this step on, each of rows of one of its `rows`, in turn, after
    the name of these.

    There is no padding, which would cost the fused attention: rows end with end-of-sequence tokens.
    """
    kinds = [one for one in stage.rows for _ in range(one.get("weight", 1))]
    while True:
        one = kinds[step % len(kinds)]
        make, options = plugins.load(one.make), dict(one.options)
        count = max(1, stage.batch_tokens // (options["tokens"] + 32))
        made = [make(step * count + row, seed, **options) for row in range(count)]
        yield one.name, encode(made, tokenizer)
        step += 1


def encode(made: list[Any], tokenizer: Any) -> Batch:
    """Rows of tasks.marked as a batch."""
    texts = [text for row in made for text in (row.query, row.document)]
    coded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    longest = 1 + max(
        len(coded.input_ids[i]) + len(coded.input_ids[i + 1]) for i in range(0, len(texts), 2)
    )
    ids = torch.full((len(made), longest), EOS)
    vip = torch.zeros_like(ids, dtype=torch.bool)
    ends, looks = [], []
    for at, row in enumerate(made):
        query, document = coded.input_ids[2 * at : 2 * at + 2]
        ids[at, : len(query) + len(document)] = torch.tensor(query + document)
        vip[at, : len(query)] = True
        token = [0] * (len(row.query) + len(row.document))
        for part, shift, first in ((0, 0, 0), (1, len(row.query), len(query))):
            for number, (begin, end) in enumerate(coded.offset_mapping[2 * at + part]):
                token[shift + begin : shift + end] = [first + number] * (end - begin)
        ends += [(at, token[first], token[last]) for first, last in row.spans]
        looks += [
            (at, look.layer, token[look.start], token[look.end], *look.heads) for look in row.looks
        ]
    kinds, right = (
        torch.tensor([getattr(row, name) for row in made]) for name in ("kind", "right")
    )
    return Batch(ids, vip, kinds, right, torch.tensor(ends).view(-1, 3), torch.tensor(looks))


class Both:
    """The families of both heads around one model."""

    def __init__(self, model: Any, tokenizer: Any, method: Method, marks: Items[str]) -> None:
        numbers = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks}
        self.span = RobertaSpan(model, tokenizer, method)
        self.choice = RobertaChoice(model, tokenizer, method)
        self.span.marks = self.choice.marks = numbers
        self.model, self.tokenizer, self.marks = model, tokenizer, numbers

    def measure(self, method: Method, batch: Batch, guidance: float) -> tuple[Tensor, float]:
        """The loss, and the share of rows whose answer is right (of several spans, of answers)."""
        walk = Looking(method, batch.looks if guidance else None)
        self.span.method = self.choice.method = walk
        sequence = Sequence(vip=batch.vip)
        if batch.kinds[0] < 0:
            logits = self.choice.classify(batch.ids, sequence)
            loss = cross_entropy(logits, batch.right)
            right = (logits.argmax(-1) == batch.right).float().mean()
        else:
            loss, right = self._span(batch, sequence)
        if guidance:
            loss = loss + guidance * walk.missed
        return loss, right.item()

    def _span(self, batch: Batch, sequence: Sequence) -> tuple[Tensor, Tensor]:
        hidden = self.span.encode(batch.ids, sequence)
        kinds = self.span._kinds(hidden, sequence)
        loss = cross_entropy(kinds, batch.kinds)
        right = kinds.argmax(-1) == batch.kinds
        if not len(batch.ends):
            return loss, right.float().mean()
        row, wanted = batch.ends[:, 0], batch.ends[:, 1:]
        ends = self.span._ends(hidden, batch.ids, sequence)
        found = ends[row]  # [c, 2, n]
        loss = loss + cross_entropy(found.flatten(0, 1), wanted.flatten())
        if len(row) > len(row.unique()):  # as many answers as a row has may come first
            most = int(torch.bincount(row).max())
            first = (found.topk(most, -1).indices == wanted[..., None]).any(-1)
            return loss, first.all(-1).float().mean()
        hit = torch.ones_like(right)
        hit[row] = (found.argmax(-1) == wanted).all(-1)
        return loss, (right & hit).float().mean()


@torch.no_grad()
def begin_comparisons(both: Both, stage: Any, seed: int) -> None:
    """Set the heads that a stage names in `align` by states on both sides of right looks within
    the query (see bench.models.embedded.align), and those in `distance` by both of its words (see
    bench.models.embedded.distance)."""
    layers: Any = both.span.layers
    method = both.span.method
    for one in stage.get("align", []):
        make = plugins.load(one.make)
        left: list[Tensor] = []
        right: list[Tensor] = []
        for first in range(0, one.rows, 32):
            made = [make(first + row, seed - 1, **one.options) for row in range(32)]
            batch = encode(made, both.tokenizer)
            both.span.method = align.Below(one.layer)
            hidden = both.span.encode(batch.ids, Sequence())
            row, layer, start, end = batch.looks[:, :4].unbind(1)
            here = (layer == one.layer) & (end > 0) & batch.vip[row, start] & batch.vip[row, end]
            left.append(hidden[row[here], start[here]])
            right.append(hidden[row[here], end[here]])
        both.span.method = method
        for head in one.heads:
            block = layers[one.layer].block
            align.align(block, head, torch.cat(left), torch.cat(right), one.gain)
    for one in stage.get("distance", []):
        distance.begin(both, one, seed - 1, encode)


def train(recipe: Any, both: Both, checkpoint: Path) -> curriculum.State:
    """Run the stages that are left."""

    def lessons(stage: Any, state: curriculum.State) -> Iterator[Lesson]:
        method = plugins.build({**recipe.method, **stage.get("method", {})})
        if not state["in_stage"]:
            begin_comparisons(both, stage, recipe.seed)
        return (
            Lesson(kind, batch.ids.shape, *both.measure(method, batch, stage.guidance))
            for kind, batch in batches(stage, both.tokenizer, recipe.seed, int(state["step"]))
        )

    return curriculum.train(recipe, both.model, checkpoint, lessons)


def load(folder: Path, method: Method, marks: Items[str]) -> Both:
    """Both heads of a checkpoint. Raises ValueError with one line."""
    model, _ = load_weights(RobertaForBoth, Spec(folder.name, folder), torch.float32)
    return Both(model, load_tokenizer(folder), method, marks)


def main(path: str, *words: str) -> None:
    recipe = recipes.read(path, words)
    out = Path(recipe.out)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.safetensors"
    if "new" in recipe and not checkpoint.exists():
        plugins.load(recipe.new.target)(recipe.new, recipe.seed, out)
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    start = Path(recipe.get("start", out))
    both = load(start, plugins.build({**recipe.method}), list(recipe.marks))
    state = train(recipe, both, checkpoint)
    both.model.save_pretrained(out)
    both.tokenizer.save_pretrained(out)
    OmegaConf.save(recipes.card(recipe, path, start, state["seconds"]), out / "card.yaml")
    checkpoint.unlink()


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
