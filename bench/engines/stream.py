"""A client of servers with OpenAI's completions, whose answers are streamed.

After transient errors, such as 429 and a stream that is cut, requests are tried again with growing
pauses until the deadline. A redirection is an error: the key would go to another address.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from bench.engines.base import Answer
from bench.errors import RequestError, RunError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which another try may succeed."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class CutStream(Exception):
    """A stream that ended before its answer did."""


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Completions:
    """A server's completions. `base_url` is an address such as http://127.0.0.1:8000/v1;
    `deadline_s` is the time for each answer, all tries included."""

    def __init__(self, base_url: str, key: str | None = None, deadline_s: float = 600.0) -> None:
        """Raises RequestError for an address that isn't HTTP."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise RequestError(
                f"base_url={base_url} is not accepted: it is such as http://127.0.0.1:8000/v1, and "
                "a key comes from the environment"
            )
        proxies: dict[str, str] | None = {} if parts.hostname in LOOPBACK else None
        proxy = urllib.request.ProxyHandler(proxies)
        self.base_url, self.deadline_s = base_url.rstrip("/"), deadline_s
        self.opener = urllib.request.build_opener(proxy, _NoRedirection)
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def models(self) -> list[str]:
        """The names of the models that the server has. Raises RunError."""
        url = f"{self.base_url}/models"
        try:
            with self._tried(url, None, self.deadline_s) as response:
                return [str(each["id"]) for each in json.load(response)["data"]]
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{url}: no list of models") from error
        except (HTTPException, OSError) as error:
            raise RunError(f"{url}: {_reason(error)}") from error

    def complete(self, prompt: Sequence[int] | str, max_tokens: int, **more: Any) -> Answer:
        """The greedy answer to a prompt, token ids or text. `more` are further fields of the
        request. Raises RunError."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **more}  # fmt: skip
        content, deadline, pause = json.dumps(body).encode(), self._deadline(), FIRST_PAUSE_S
        while True:
            try:
                return self._streamed(content, deadline)
            except (CutStream, HTTPException, OSError) as error:
                if time.monotonic() + pause > deadline:
                    raise RunError(f"{self.base_url}: {_reason(error)}") from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _deadline(self) -> float:
        return time.monotonic() + self.deadline_s

    def _streamed(self, content: bytes, deadline: float) -> Answer:
        """One try, whose time begins with its request."""
        texts, counted, ended, first_ns, last_ns = list[str](), None, False, 0, 0
        left_s = max(1.0, deadline - time.monotonic())
        began = perf_counter_ns()
        with self._tried(f"{self.base_url}/completions", content, left_s) as response:
            for event in _events(response):
                if usage := event.get("usage"):
                    counted = usage.get("completion_tokens")
                for choice in event.get("choices", ()):
                    ended |= choice.get("finish_reason") is not None
                    if choice.get("text"):
                        last_ns = perf_counter_ns() - began
                        first_ns = first_ns or last_ns
                        texts.append(choice["text"])
        if not ended:
            raise CutStream("its stream ended before the answer")
        took = perf_counter_ns() - began
        return Answer("".join(texts), counted or len(texts), first_ns or took, last_ns or took)

    def _tried(self, url: str, content: bytes | None, left_s: float) -> Any:
        """The response of one try. Raises RunError for a permanent error, OSError for others."""
        request = urllib.request.Request(url, content, self.headers)
        try:
            return self.opener.open(request, timeout=left_s)
        except urllib.error.HTTPError as error:
            if error.code in PASSING:
                raise
            detail = " ".join(error.read(2000).decode(errors="replace").split())
            raise RunError(f"{url}: HTTP {error.code} {detail[:300]}") from error


def _events(response: Any) -> Iterator[Mapping[str, Any]]:
    """The events of a stream. Raises RunError for an error among them."""
    for line in response:
        kind, _, content = line.strip().partition(b":")
        content = content.strip()
        if kind != b"data" or content == b"[DONE]":
            continue
        try:
            event = json.loads(content)
        except ValueError as error:
            raise CutStream("an event of its stream is no JSON") from error
        if not isinstance(event, dict):
            continue
        if event.get("error"):
            raise RunError(f"the server's answer is an error: {json.dumps(event['error'])[:300]}")
        yield event


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} until the deadline"
    return f"{getattr(error, 'reason', None) or error or type(error).__name__}"
