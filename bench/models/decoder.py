"""Decoders: Llama, Qwen, Mistral, Gemma, GPT and every other architecture whose layers compute
attention through transformers' attention interface (bench.models.attention_sites finds out).

The model's own forward runs around a method: embeddings and their scale, positions, norms, caps on
logits. A prompt goes through the method (prefill) and fills its KV cache; the tokens after it are
decoded one by one, each attending to the kept entries. With grouped-query attention the method
gets one head of keys and values a group (methods/parts/sequence.py).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from bench.models import batched_rows, rotation
from bench.models.attention import Attend, BlockLayer, Projections, Route, hung
from bench.models.attention_sites import attention_sites, table_of_positions
from bench.models.base import Decoding
from bench.models.batched_rows import Row
from bench.models.hf import HubFamily, counted
from bench.models.llama import LlamaLayer
from bench.models.padded_rows import causal, padded_left, question_start
from bench.models.read_anew import ReadAnew
from bench.models.wrappers import unwrapped
from methods.base import (
    AttentionCall,
    Feature,
    KVCache,
    Layer,
    Method,
    ModuleCall,
    SequenceInfo,
    Unsupported,
    Workload,
    leaves_windows,
)
from methods.parts.attention import exact_attention
from methods.parts.kv_cache import FullCache, WindowsApart, decodes_exactly, decoding_singly

LLAMA_BLOCKS = ("llama", "mistral", "qwen2")
"""Types of models whose blocks are Llama's, so that a method may run them one by one."""

STOP_EVERY = 4
"""New tokens between two checks for stop strings."""
LENGTHS = "its rotary frequencies depend on the input's length, which differs by row"
CLOSED = "this model's blocks run as they are: a method replaces only their attention"


class DecoderFamily(HubFamily):
    """Any decoder with the method in its attention; in some, in the stack of blocks too."""

    kinds = ("llama",)
    causal = True
    tiny_config: ClassVar[dict[str, Any]] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
    }

    question_after = False

    def __init__(self, model: nn.Module, tokenizer: Any, method: Method, seed: int = 0) -> None:
        """Raises ValueError for an architecture into which no method can be put."""
        self.sites = attention_sites(model.eval())
        self.table = table_of_positions(model)
        self.changes_past = rotation.changes_past(model)
        self.read_anew_past = rotation.read_anew_past(model)
        super().__init__(model, tokenizer, method, seed)
        generation: Any = model.generation_config
        if generation.eos_token_id is None:
            generation.eos_token_id = getattr(tokenizer, "eos_token_id", None)

    @classmethod
    def architecture_of(cls, kind: str | None, folder: Path | str = "this request") -> Any:
        try:
            return MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]
        except KeyError:
            raise ValueError(
                f"{folder} holds a model of type {kind!r}, which is no decoder of transformers"
            ) from None

    @property
    def layers(self) -> Sequence[Layer]:
        return self._layers()

    def workload(self, length: int, batch: int) -> Workload:
        site = self.sites[0]
        windows = any(one.window is not None and one.window < length for one in self.sites)
        features = frozenset[Feature]().union(*(one.features for one in self.sites))
        return replace(
            super().workload(length, batch),
            heads=site.heads,
            key_heads=site.key_heads,
            head_size=site.head_size,
            features=features | {Feature.WINDOW} if windows else features,
            window_layers=sum(one.window is not None for one in self.sites),
            rotatable=all(one.rotation is not None for one in self.sites),
            blocks=self._walks,
        )

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm; always causal."""
        sequence = causal(ids, sequence)
        if self._walks:
            return self._walk(self._layers(), ids, sequence)
        hidden: Tensor = self._run(self.model.base_model, ids, sequence).last_hidden_state
        return hidden

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        """Computed in the same way as answers: the prompt at once and the target token by token, if
        the method has a cache or the rotary frequencies change before its end; else, and in
        training, all in one forward pass."""
        changes = self.changes_past is not None and (
            ids.shape[1] + target.shape[1] - 1 > self.changes_past
        )
        if self.model.training or (self._own_cache(*ids.shape[::-1]) is None and not changes):
            ids, sequence = padded_left(ids, sequence)
            ids = torch.cat((ids, target[:, :-1].clamp(min=0)), 1)
            sequence = sequence.followed_by(target.shape[1] - 1)
            return self._logits(ids, sequence, target.shape[1])
        decoding = self.prefill(ids, sequence)
        first, forced = decoding.logits, target.clamp(min=0)
        steps = [decoding.step(forced[:, i : i + 1]) for i in range(target.shape[1] - 1)]
        return torch.stack([first, *steps], 1)

    def loss(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        return cross_entropy(self.logits(ids, sequence, target).flatten(0, 1), target.flatten())

    def prefill(self, ids: Tensor, sequence: SequenceInfo) -> Decoding:
        if self.question_after and (start := question_start(sequence)):
            decoding = self._prefilled(ids[:, :start], SequenceInfo())
            decoding.step(ids[:, start:])
            return decoding
        return self._prefilled(ids, sequence)

    def prefill_each(
        self, ids: Tensor, sequence: SequenceInfo, methods: Sequence[Method]
    ) -> list[Row]:
        """Reads a prompt ids [1, n] once, by the attention of the first method, which must be that
        of all: for each method a row that continues by `step` or, together with others, by
        `step_each`. Raises Unsupported for a model whose rows can't continue together."""
        if self.changes_past is not None:
            raise Unsupported(LENGTHS)
        start = self.question_after and question_start(sequence)
        text, read = (ids[:, :start], SequenceInfo()) if start else (ids, sequence)
        text, read = padded_left(text, read)
        own, rows = self.method, list[Row]()
        try:
            for method in methods:
                self.method = method
                cache = self.new_cache(text.shape[1], 1)
                reach = self.reach(cache)
                forward = partial(self._next_logits, cache, reach)
                rows.append(Row(torch.empty(0), read, cache, forward, reach))
            self.method = next((one for one in methods if one.reads_modules), methods[0])
            logits, read = self._filled(text, read, batched_rows.taking(methods[0], rows))
        finally:
            self.method = own
        for row in rows:
            row.logits, row.sequence = logits, read
            row.attempt(partial(self._reread, row.cache, text))
            if start:
                row.attempt(partial(row.step, ids[:, start:]))
        return rows

    def step_each(self, rows: Sequence[Row], ids: Tensor) -> None:
        """Reads the next token ids [R, 1] of each row, as `Row.step` does, in one batch."""
        for row in rows:
            row.sequence = row.sequence.followed_by(1)
            row.attempt(partial(self._check_place, row.reach, row.sequence))
        going = [i for i, row in enumerate(rows) if row.error is None]
        rows = [rows[i] for i in going]
        if rows:
            ids, sequence = batched_rows.batch(rows, ids[going])
            attend = batched_rows.decoding(rows)
            logits = self._run(self.model, ids, sequence, attend, logits_to_keep=1).logits
            for row, own in zip(rows, logits[:, -1:], strict=False):
                row.logits = own

    def read_at_once(self, decoding: Decoding, ids: Tensor) -> Tensor | None:
        """Reads the next tokens ids [B, t] in one pass → the logits [B, t, V] after each of them,
        equal to those of single steps. None where there is no such pass, and nothing is read."""
        cache = decoding.cache
        decode = None if cache is None else decoding_singly(cache)
        if cache is None or decode is None or self.changes_past is not None:
            return None
        decoding.sequence = sequence = decoding.sequence.followed_by(ids.shape[1])
        self._check_place(self.reach(cache), sequence)
        output = self._run(self.model, ids, sequence, decode, logits_to_keep=ids.shape[1])
        logits: Tensor = output.logits
        decoding.logits = logits[:, -1]
        return logits

    def _prefilled(self, ids: Tensor, sequence: SequenceInfo) -> Decoding:
        """All of the ids [B, n] in the cache."""
        ids, sequence = padded_left(ids, sequence)
        cache = self.new_cache(ids.shape[1], ids.shape[0])
        logits, sequence = self._filled(ids, sequence, cache.prefill)
        self._reread(cache, ids)
        forward = partial(self._next_logits, cache, self.reach(cache))
        past = self.read_anew_past
        if past is None:
            return Decoding(logits, sequence, cache, forward)
        after = self.question_after
        return ReadAnew(logits, sequence, cache, forward, ids, past, self._prefilled, after)

    def _filled(
        self, ids: Tensor, sequence: SequenceInfo, attend: Attend
    ) -> tuple[Tensor, SequenceInfo]:
        """The logits [B, V] after a prompt ids [B, n], and its sequence with positions; `attend`
        keeps every layer's keys and values."""
        given: dict[int, int] = {}

        def fill(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
            given[call.layer] = key.shape[2]
            if inputs:
                call = replace(call, module=inputs[call.layer])
            return attend(query, key, value, call)

        with self._watched_modules() as inputs:
            logits = self._logits(ids, sequence, 1, fill)[:, 0]
        if given != dict.fromkeys(range(len(self.sites)), ids.shape[1]):
            raise Unsupported("decoding needs every layer's keys of every token of the prompt")
        return logits, sequence.replace(positions=counted(sequence, ids), causal=True)

    def _reread(self, cache: KVCache | None, ids: Tensor) -> None:
        """Reads the tokens that the cache of a prompt ids [B, n] requests after it (`KVCache`)."""
        if (rereads := getattr(cache, "rereads", None)) is None:
            return
        if self.changes_past is not None:
            raise Unsupported(LENGTHS)
        tokenizer = self.tokenizer and partial(self.tokenizer, add_special_tokens=False)
        for more, sequence, attend in rereads(ids, tokenizer):
            self._run(self.model.base_model, more, sequence, attend)

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """Only the new tokens, greedy, [B, ≤ max_new_tokens]; a row that has ended is padded.
        Raises Unsupported for a method that runs the layers on other tokens than the prompt's."""
        decoding = self.prefill(ids, sequence)
        return decoding.driven(self._answer(decoding, max_new_tokens))

    @torch.no_grad()
    def converse(
        self,
        ids: Tensor,
        sequence: SequenceInfo,
        questions: Sequence[Tensor],
        max_new_tokens: int,
    ) -> list[str]:
        """See `bench.models.conversing`."""
        decoding = self.prefill(ids, sequence)
        return decoding.driven(self.conversation(decoding, questions, max_new_tokens))

    def conversation(
        self, decoding: Decoding, questions: Sequence[Tensor], max_new_tokens: int
    ) -> Generator[Tensor, None, list[str]]:
        """Yields the tokens [1, t] for `decoding` to read next, and returns the greedy answers to
        its prompt and to each of the questions [1, t] after it."""
        answers = [(yield from self._answer(decoding, max_new_tokens))]
        for question in questions:
            unread = answers[-1][:, -1:]
            unread = unread[:, : 0 if bool(torch.isin(unread, self._ends()).all()) else 1]
            yield torch.cat((unread, question), 1)
            answers.append((yield from self._answer(decoding, max_new_tokens)))
        return [self.tokenizer.decode(tokens[0], skip_special_tokens=True) for tokens in answers]

    def _answer(self, decoding: Decoding, max_new_tokens: int) -> Generator[Tensor, None, Tensor]:
        """Yields the tokens [B, 1] for `decoding` to read next, and returns the new tokens
        [B, ≤ max_new_tokens], of which the last has not been read."""
        ends = self._ends()
        ended = torch.zeros_like(decoding.logits[:, :1], dtype=torch.bool)
        tokens: list[Tensor] = []
        while True:
            token = decoding.logits.argmax(-1, keepdim=True)
            token = torch.where(ended, ends[0], token) if len(ends) else token
            tokens.append(token)
            ended |= torch.isin(token, ends)
            if len(tokens) >= max_new_tokens or bool(ended.all()) or self._are_over(tokens):
                return torch.cat(tokens, 1)
            yield token

    def _are_over(self, tokens: Sequence[Tensor]) -> bool:
        """Whether all rows have a stop string, at every STOP_EVERY-th token."""
        if self.is_over is None or len(tokens) % STOP_EVERY:
            return False
        texts = self.tokenizer.batch_decode(torch.cat([*tokens], 1), skip_special_tokens=True)
        return all(map(self.is_over, texts))

    @property
    def _walks(self) -> bool:
        return self.model.config.model_type in LLAMA_BLOCKS

    @property
    def exact_layers(self) -> frozenset[int]:
        if not leaves_windows(unwrapped(self.method), self.workload(1, 1)):
            return frozenset()
        return frozenset(i for i, site in enumerate(self.sites) if site.window is not None)

    def new_cache(self, length: int, batch: int) -> KVCache:
        """An empty cache for a prompt; in the layers in which the method runs, its own."""
        own, exact = self._own_cache(length, batch), self.exact_layers
        cache = FullCache(self.method.attend) if own is None else own
        return WindowsApart(cache, exact) if exact else cache

    def reach(self, cache: KVCache) -> int | None:
        """The tokens that a cache may decode over: if all layers have windows, which the method
        ignores, the shortest window. None: any number."""
        honoured = Feature.WINDOW in unwrapped(self.method).honours or self.exact_layers
        if honoured or decodes_exactly(cache):
            return None
        return min((one.window for one in self.sites if one.window is not None), default=None)

    def _own_cache(self, length: int, batch: int) -> KVCache | None:
        return self.method.kv_cache(self.workload(length, batch))

    def _logits(
        self, ids: Tensor, sequence: SequenceInfo, last: int, cached: Attend | None = None
    ) -> Tensor:
        """[B, last, V]: logits after each of the last tokens of ids [B, n]."""
        sequence = causal(ids, sequence)
        if self._walks:
            hidden = self._walk(self._layers(cached), ids, sequence)
            logits: Tensor = self.model.lm_head(hidden[:, -last:])
        else:
            logits = self._run(self.model, ids, sequence, cached, logits_to_keep=last).logits
        return logits

    def _next_logits(
        self, cache: KVCache, reach: int | None, ids: Tensor, sequence: SequenceInfo
    ) -> Tensor:
        """[B, V]: logits after new tokens ids [B, t], the last ones of the sequence."""
        self._check_place(reach, sequence)
        output = self._run(self.model, ids, sequence, cache.decode, logits_to_keep=1)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _check_place(self, reach: int | None, sequence: SequenceInfo) -> None:
        """Raises Unsupported where the last tokens of a sequence can't be decoded."""
        places = sequence.positions
        assert places is not None
        if reach is not None and places.shape[1] > reach:
            raise Unsupported(f"the method ignores a window of {reach} tokens, which ends here")
        self._check_table(places[:, -1])

    def _check_table(self, places: Tensor) -> None:
        """Raises Unsupported for positions without an embedding in the model."""
        if self.table is not None and int(places.max()) >= self.table:
            kind = self.model.config.model_type
            raise Unsupported(f"this {kind} has learned positions for {self.table} tokens alone")

    def _walk(self, layers: Sequence[LlamaLayer], ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """The blocks of a Llama, as the method runs them."""
        stack = self.model.model
        self._forget_lengths()
        hidden = self.method.encode(layers, stack.embed_tokens(ids), sequence)
        output: Tensor = stack.norm(hidden)
        return output

    def _run(
        self,
        module: nn.Module,
        ids: Tensor,
        sequence: SequenceInfo,
        cached: Attend | None = None,
        **more: Any,
    ) -> Any:
        """The model's own forward of the last tokens of a sequence, ids [B, t]."""
        places = counted(sequence, ids)[:, -ids.shape[1] :].expand(ids.shape)
        self._check_table(places)
        self._forget_lengths()
        with hung(self._routes(sequence, cached)):
            return module(ids, position_ids=places, use_cache=False, **more)

    def _forget_lengths(self) -> None:
        """See `bench.models.rotation.forget_lengths`."""
        if self.changes_past is not None:
            rotation.forget_lengths(self.model)

    @contextmanager
    def _watched_modules(self) -> Iterator[Mapping[int, ModuleCall]]:
        """By layer, the last call of its attention module, if the method reads it."""
        calls: dict[int, ModuleCall] = {}

        def note(layer: int, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            hidden = given[0] if given else named["hidden_states"]
            calls[layer] = ModuleCall(self.model, module, hidden, named)

        hooks = []
        if self.method.reads_modules:
            for layer, site in enumerate(self.sites):
                module = self.model.get_submodule(site.name)
                hook = partial(note, layer)
                hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        try:
            yield calls
        finally:
            for handle in hooks:
                handle.remove()

    def _routes(self, sequence: SequenceInfo, cached: Attend | None) -> Mapping[nn.Module, Route]:
        return {
            self.model.get_submodule(site.name): Route(
                self, sequence, layer, cached=attend, rotate=site.rotation
            )
            for layer, (site, attend) in enumerate(zip(self.sites, self._each(cached), strict=True))
        }

    def _each(self, cached: Attend | None) -> list[Attend | None]:
        """The attention of each layer: as `Route.cached`."""
        exact = self.exact_layers if cached is None else ()
        return [exact_attention if i in exact else cached for i in range(len(self.sites))]

    def _layers(self, cached: Attend | None = None) -> list[Any]:
        if not self._walks:
            return [ClosedLayer(self, None, layer) for layer in range(len(self.sites))]
        stack = self.model.model
        return [
            LlamaLayer(self, block, layer, stack.rotary_emb, attend, site.rotation)
            for layer, (block, site, attend) in enumerate(
                zip(stack.layers, self.sites, self._each(cached), strict=True)
            )
        ]

    def _ends(self) -> Tensor:
        """The end-of-sequence tokens; the first one also pads."""
        ends = self.model.generation_config.eos_token_id
        tokens = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return torch.tensor(tokens, dtype=torch.long, device=self.model.device)


class ClosedLayer(BlockLayer):
    """A block that only the model's own forward runs."""

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        raise Unsupported(CLOSED)

    def projections(self) -> Projections:
        raise Unsupported(CLOSED)
