"""BERT (Devlin et al., arXiv 1810.04805) and RoBERTa (Liu et al., arXiv 1907.11692).

Encoders with learned positions and a class head. Positions past the table start over at its
beginning: the table extended by tiling (as VCC does) without its memory, whose copies stay tied in
training. Positions count from each row's first valid token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import BertForSequenceClassification, RobertaForSequenceClassification

from bench.models.attention import BlockLayer, Projections, Route
from bench.models.hf import Classifier, counted
from methods.base import Layer, SequenceInfo


@dataclass(frozen=True)
class BertLayer(BlockLayer):
    """One post-norm encoder block: a `methods.base.PostNormLayer`."""

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return self.final_norm(self.before_norm(hidden, sequence))

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        attention = self.block.attention
        output: Tensor = attention.output.dense(attention.self(projected, route=route)[0])
        return output

    def before_norm(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        first, last = self.block.attention.output, self.block.output
        read = first.LayerNorm(first.dropout(self.mix(hidden, self.route(sequence))) + hidden)
        output: Tensor = read + last.dropout(last.dense(self.block.intermediate(read)))
        return output

    def final_norm(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.block.output.LayerNorm(hidden)
        return output

    def projections(self) -> Projections:
        attention = self.block.attention.self
        return Projections(
            attention.query, attention.key, attention.value, self.block.attention.output.dense,
            attention.attention_head_size, attention.scaling, attention.dropout.p,
        )  # fmt: skip


class BertFamily(Classifier):
    """Any BERT checkpoint; one without a trained class head gets a random one, for training."""

    kinds: ClassVar[tuple[str, ...]] = ("bert",)
    architecture: ClassVar[Any] = BertForSequenceClassification
    may_lack: ClassVar[tuple[str, ...]] = ("bert.pooler.", "classifier.")
    tiny_config: ClassVar[dict[str, Any]] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
    }

    @property
    def first_position(self) -> int:
        """The table's row of position 0."""
        return 0

    @property
    def layers(self) -> Sequence[Layer]:
        blocks = self.model.base_model.encoder.layer
        return [BertLayer(self, block, index) for index, block in enumerate(blocks)]

    def segments(self, ids: Tensor, sequence: SequenceInfo) -> Tensor | None:
        """[B, n]: the token types; None: one segment, of type 0."""
        return None

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D]"""
        first = self.first_position
        tiled = counted(sequence, ids) % (self.model.config.max_position_embeddings - first)
        hidden = self.model.base_model.embeddings(
            input_ids=ids,
            position_ids=tiled + first,
            token_type_ids=self.segments(ids, sequence),
        )
        return self.method.encode(self.layers, hidden, sequence)

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """The class head on each row's first valid token: ids [B, n] → [B, classes]."""
        first = first_valid(self.encode(ids, sequence), sequence)
        logits: Tensor = self._head(first[:, None])
        return logits

    def _head(self, first: Tensor) -> Any:
        return self.model.classifier(self.model.dropout(self.model.bert.pooler(first)))


class RobertaFamily(BertFamily):
    """Any RoBERTa or XLM-R checkpoint: positions begin after the padding's own row of the table."""

    kinds = ("roberta", "xlm-roberta")
    architecture = RobertaForSequenceClassification
    may_lack: ClassVar[tuple[str, ...]] = ("classifier.",)
    tiny_config: ClassVar[dict[str, Any]] = {
        **BertFamily.tiny_config,
        "max_position_embeddings": 130,
        "pad_token_id": 1,
    }

    @property
    def first_position(self) -> int:
        return int(self.model.config.pad_token_id) + 1

    def _head(self, first: Tensor) -> Any:
        return self.model.classifier(first)


def first_valid(hidden: Tensor, sequence: SequenceInfo) -> Tensor:
    """[B, n, D] → [B, D]: each row's first token that isn't padding."""
    if sequence.valid is None:
        return hidden[:, 0]
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, sequence.valid.long().argmax(1)]
