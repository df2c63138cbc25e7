"""Any method in any model, as a model of lm-evaluation-harness (the package lm_eval):

    bench lm_eval run --model longctx-bench \\
        --model_args pretrained=CHECKPOINT,method=snapkv,budget=0.25 --tasks TASK …

Tokenization, truncation, stop strings and metrics are those of its model `hf`. The difference is
the forward pass: the method reads the context, and may compress its KV cache; the continuation is
then scored, or generated, over the kept entries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import resolve_max_length
from lm_eval.models.utils_hf import stop_sequences_criteria
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_outputs import BaseModelOutput

from bench.errors import RequestError
from bench.execution import arms
from bench.measure import integrity
from bench.measure.integrity import IntegrityError
from bench.models import auto
from bench.models.hf import all_valid
from bench.request import compose, parameters, weights
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from methods.base import SequenceInfo, Unsupported
from methods.parts.eviction import Rolling
from tasks.base import ANSWERS, Encoded
from tasks.loading.lm_eval_package import MODEL

GREEDY = {"attention_mask", "do_sample", "temperature", "top_k", "top_p"}
"""Arguments of a generation that change nothing in greedy decoding."""
log = logging.getLogger("lm_eval.bench")
Scored = tuple[Any, list[int], list[int]]
"""A request of lm_eval: its key in a cache of answers, context and continuation."""


@register_model(MODEL)
class LongContextLM(HFLM):  # type: ignore[misc]
    """`pretrained` is a model of conf/model, a checkpoint folder or a hub id that `bench fetch`
    has downloaded; further `parameters` are the method's. Raises RequestError."""

    def __init__(
        self,
        pretrained: str,
        method: str = BASELINE,
        device: str | None = None,
        dtype: str = "auto",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        **parameters: Any,
    ) -> None:
        if not str(batch_size).isdigit() or int(batch_size) < 1:
            raise RequestError(f"batch_size={batch_size} is not accepted: a number, 1 or more")
        given = {f"method.{name}": value for name, value in parameters.items()}
        cell = _cell(
            {"model": pretrained, "method": method, **given, "batch": int(batch_size)},
            device, dtype, max_length,
        )  # fmt: skip
        self.shown = f"method={method} model={pretrained}"
        with self._explained():
            self.family = arms.load(cell, arms.method_of(cell))
        if self.family.answers != "text":
            raise RequestError(
                f"model {pretrained} answers with {ANSWERS[self.family.answers]}; "
                "lm_eval's tasks take a model that answers with text"
            )
        causal = self.family.workload(1, 1).causal
        super().__init__(
            pretrained=self.family.model,
            backend="causal" if causal else "seq2seq",
            tokenizer=cell.model["path"],
            batch_size=int(batch_size),
            max_length=cell.length,
            add_bos_token=add_bos_token,
            prefix_token_id=prefix_token_id,
        )

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Raises RequestError for a method that only compresses the text before a question."""
        if self._compresses and not isinstance(self.family.method, Rolling):
            raise RequestError(
                f"{self.shown}: the likelihood of a whole text has no context before it whose KV "
                "cache could be compressed; it takes a method without its own KV cache, such "
                f"as {BASELINE}, or one that displaces tokens as it reads"
            )
        return super().loglikelihood_rolling(requests, disable_tqdm)  # type: ignore[no-any-return]

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one. Continuations that
        differ only in their last token share a forward pass."""
        single = sum(len(continuation) == 1 for _, _, continuation in requests)
        if single and self._compresses:
            log.warning(
                f"{self.shown}: {single} of {len(requests)} continuations have one token, which "
                "follows from the context before its KV cache is compressed: their scores are "
                "those of the method that reads the prompt"
            )
        inputs: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            if len(continuation) > self.max_length:
                raise RequestError(
                    f"a continuation has {len(continuation)} tokens, more than "
                    f"max_length={self.max_length}"
                )
            room = self.max_length
            if self.backend == "causal":
                room += 1 - len(continuation)
            key = tuple(context[-room:]), tuple(continuation[:-1])
            inputs.setdefault(key, []).append(number)
        answers: dict[int, tuple[float, bool]] = {}
        for group in _batches(list(inputs), self.batch_size):
            # loglikelihood_rolling's windows have no key.
            whole = requests[inputs[group[0]][0]][0] is None
            for key, logits in zip(group, self._logits(group, whole), strict=True):
                likely = logits.log_softmax(-1)
                for number in inputs[key]:
                    asked, _, continuation = requests[number]
                    tokens = torch.tensor(continuation, device=logits.device)
                    score = float(likely.gather(1, tokens[:, None]).sum())
                    answers[number] = score, bool((logits.argmax(-1) == tokens).all())
                    if asked is not None:
                        self.cache_hook.add_partial("loglikelihood", asked, answers[number])
        return [answers[number] for number in range(len(requests))]

    @property
    def _compresses(self) -> bool:
        """Whether the method has its own KV cache."""
        workload = self.family.workload(self.max_length, 1)
        return self.family.method.kv_cache(workload) is not None

    @torch.inference_mode()
    def _logits(self, group: Sequence[Any], whole: bool) -> Tensor:
        """[B, t, V]: logits before each of the t tokens of the continuations, which `group` has
        without the last one. `whole`: all is one text, without a context that is read first."""
        encoded = [Encoded(context, [False] * len(context), len(context)) for context, _ in group]
        ids, sequence = arms.collate(encoded, self.family.model.device.type)  # type: ignore[union-attr,arg-type]
        sequence = sequence.replace(vip=None)
        # A placeholder for the last token, which no model reads.
        target = torch.tensor([[*read, 0] for _, read in group], device=self.device)
        with self._explained(), integrity.watched(self.family):
            if whole:
                return self.family.logits(ids, sequence, target)
            decoding = self.family.prefill(ids, sequence)
            steps = (target[:, at : at + 1] for at in range(target.shape[1] - 1))
            return torch.stack([decoding.logits, *map(decoding.step, steps)], 1)

    @torch.inference_mode()
    def _model_generate(
        self, context: Tensor, max_length: int, stop: list[str], **options: Any
    ) -> Tensor:
        """Greedy. context [B, n], padded on the left → [B, n + t], of an encoder–decoder [B, t]."""
        others = sorted(name for name, value in options.items()
                        if name not in GREEDY and value is not None)  # fmt: skip
        if options.get("do_sample") or others:
            wrong = "do_sample" if options.get("do_sample") else others[0]
            raise RequestError(
                f"generation argument {wrong}={options[wrong]} is not accepted: the likeliest "
                "token is taken at each step (--gen_kwargs do_sample=false)"
            )
        valid = options["attention_mask"].bool()
        sequence = SequenceInfo(valid=None if bool(valid.all()) else valid)
        with self._explained(), integrity.watched(self.family):
            if self.backend != "seq2seq":
                new = self._new_tokens(context, sequence, max_length - context.shape[1], stop)
                return torch.cat((context, new), 1)
            # With the checkpoint's beams and forced tokens, as lm_eval's own model decodes.
            hidden = self.family.encode(context, sequence)
            tokens: Tensor = self.family.model.generate(  # type: ignore[operator]
                encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
                attention_mask=all_valid(context, sequence).long(),
                max_length=max_length,
                stopping_criteria=stop_sequences_criteria(self.tokenizer, stop, 1, len(context)),
                pad_token_id=self.tokenizer.pad_token_id,
                do_sample=False,
            )
            return tokens

    def _new_tokens(
        self, context: Tensor, sequence: SequenceInfo, most: int, stop: list[str]
    ) -> Tensor:
        """[B, at most `most`]; a row that has ended is padded."""
        stops = stop_sequences_criteria(self.tokenizer, stop, 0, len(context))
        given = self.family.model.generation_config.eos_token_id  # type: ignore[union-attr]
        ends = torch.tensor([] if given is None else given, dtype=torch.long, device=self.device)
        decoding = self.family.prefill(context, sequence)
        ended = torch.zeros(len(context), 1, dtype=torch.bool, device=self.device)
        tokens = context[:, :0]
        while True:
            token = decoding.logits.argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, token.masked_fill(ended, self.tokenizer.pad_token_id)), 1)
            ended |= torch.isin(token, ends)
            # All are called, since each remembers the rows that it has stopped.
            stopped = any([criterion(tokens, None) for criterion in stops])
            if tokens.shape[1] >= most or stopped or bool(ended.all()):
                return tokens
            decoding.step(token)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises one line for an input that the method does not support, or a method that never
        runs."""
        family = getattr(self, "family", None)
        if family is not None:
            family.calls = 0
        try:
            yield
            if family is not None:
                integrity.check_attention_ran(family)
        except (Unsupported, IntegrityError) as error:
            raise RequestError(f"{self.shown}: {error}") from error


def _cell(words: dict[str, Any], device: str | None, dtype: str, max_length: int | None) -> Cell:
    """The cell of such a request; its names are looked up and checked as by `bench run`."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    words = {**words, "device": kind.partition(":")[0], "n": 1, "measure": "speed"}
    if dtype != "auto":
        words["dtype"] = dtype
    overrides = [f"{name}={'null' if value is None else value}" for name, value in words.items()]
    request = compose.compose(overrides)
    model = request["model"]
    folder = weights.find_checkpoint(model["path"], model.get("revision"))
    if max_length is None and not model.get("config"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        max_length = resolve_max_length(config)
    if dtype == "auto" and not model.get("config"):
        stored = auto.read_config(Path(folder))
        request["dtype"] = stored.get("dtype") or stored.get("torch_dtype") or request["dtype"]
    request["length"] = max_length or request["length"]
    parameters.check_values(request)
    parameters.check_device(request["device"])
    return Cell.with_rows(request, "", "")


def _batches(inputs: list[Any], size: int) -> Iterator[Sequence[Any]]:
    """Batches of continuations of equal length, so that none is padded; the longest contexts
    first."""
    inputs.sort(key=lambda each: (-len(each[1]), -len(each[0])))
    for length in dict.fromkeys(len(read) for _, read in inputs):
        yield from arms.batches([each for each in inputs if len(each[1]) == length], size)
