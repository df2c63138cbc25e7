"""Any server with OpenAI's completions, such as vLLM, SGLang or llama.cpp's, at an address in the
request. The tokenizer and the weights of vanilla are those of the request's model, which must be
the model that the server runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bench.engines.base import Answer, Engine, Session, Start
from bench.engines.stream import Completions
from bench.errors import RequestError
from methods.parts.parameters import Range


@dataclass(frozen=True)
class OpenAI(Engine):
    """
    base_url   the server's address up to /v1
    served     the server's name of the model (None: the first in its list)
    send       prompts as token ids, or as text, to which the server adds its first token itself
    key        environment variable with the key that the server requires; its value is not stored
    timeout_s  seconds for an answer, all tries included
    vanilla    address of the server in the place of vanilla (None: this project's decoder); it gets
               the same prompts, and the key if host and port are those of `base_url`
    vanilla_served  as `served`, for `vanilla`; two models of one server can be compared by it
    """

    base_url: str = "http://127.0.0.1:8000/v1"
    served: str | None = None
    send: Literal["ids", "text"] = "ids"
    key: str | None = None
    timeout_s: Annotated[float, Range(1)] = 600.0
    vanilla: str | None = None
    vanilla_served: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vanilla_served and not self.vanilla:
            raise ValueError("vanilla_served is the model of a server: give vanilla=ADDRESS too")
        if (self.base_url, self.served) == (self.vanilla, self.vanilla_served):
            raise ValueError(f"vanilla={self.vanilla} is the server that is measured")

    def start(self, given: Start) -> Session:
        key = os.environ.get(self.key) if self.key else None
        if self.key and not key:
            raise RequestError(f"method.key={self.key}: no such environment variable")
        client = Completions(self.base_url, key, self.timeout_s)
        served = self.served
        if served is None:
            if not (models := client.models()):
                raise RequestError(f"{self.base_url} lists no model: give method.served=NAME")
            served = models[0]
        tokenizer = given.tokenizer if self.send == "text" else None
        return ServerSession(client, f"server with {served}", tokenizer, {"model": served})


class ServerSession:
    """A session with a server. With a `tokenizer`, prompts are sent as text."""

    def __init__(
        self, client: Completions, version: str, tokenizer: Any, fields: dict[str, Any]
    ) -> None:
        self.client, self.version, self.tokenizer, self.fields = client, version, tokenizer, fields

    def generate(
        self, ids: Sequence[int], new_tokens: int, stop: Sequence[str] = (), exactly: bool = False
    ) -> Answer:
        more = self.fields | ({"ignore_eos": True} if exactly else {})
        if stop:
            more["stop"] = list(stop)
        prompt = list(ids) if self.tokenizer is None else self._text(ids)
        return self.client.complete(prompt, new_tokens, **more)

    def _text(self, ids: Sequence[int]) -> str:
        skipped = bool(ids) and ids[0] == self.tokenizer.bos_token_id
        return str(self.tokenizer.decode(ids[skipped:]))

    def peak_bytes(self) -> int | None:
        return None

    def close(self) -> None: ...
