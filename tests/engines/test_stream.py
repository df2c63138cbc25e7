"""The client of servers, against a small server on loopback."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.engines import stream
from bench.engines.base import Start
from bench.engines.openai import OpenAI
from bench.engines.stream import Completions
from bench.errors import RequestError, RunError


@contextmanager
def served(*replies):
    """A server that gives these replies to its requests, in order, the last one again and again:
    a status, or the pieces of a stream, of which None cuts it. Yields its address and requests."""
    asked, left = [], list(replies)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.answer(json.dumps({"data": [{"id": "tiny"}]}).encode())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((body, self.headers.get("Authorization")))
            reply = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(reply, int):
                self.send_response(reply)
                self.send_header("Location", "http://127.0.0.1:9/")
                self.end_headers()
                self.wfile.write(b"no")
                return
            self.answer(b"".join(events(reply)))

        def answer(self, content):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


def events(pieces):
    for piece in pieces:
        if piece is None:
            return
        yield b"data: " + json.dumps({"choices": [{"text": piece}]}).encode() + b"\n\n"
    usage = {"completion_tokens": 7}
    ended = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": usage}
    yield b"data: " + json.dumps(ended).encode() + b"\n\ndata: [DONE]\n\n"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(stream, "FIRST_PAUSE_S", 0.01)


def test_a_stream_is_an_answer_with_the_tokens_that_the_server_counts():
    with served(["ab", "", "c"]) as (url, asked):
        answer = Completions(url).complete([1, 2], 8, stop=["."])
    assert (answer.text, answer.tokens) == ("abc", 7)
    assert 0 < answer.first_ns <= answer.last_ns
    body, key = asked[0]
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ([1, 2], 8, 0)
    assert body["stop"] == ["."] and key is None


@pytest.mark.parametrize("failure", [429, 503, ["a", None]])
def test_what_passes_is_tried_again(failure):
    with served(failure, failure, ["a"]) as (url, asked):
        assert Completions(url).complete([1], 1).text == "a"
    assert len(asked) == 3


def test_the_deadline_ends_the_tries():
    with served(429) as (url, _), pytest.raises(RunError, match="HTTP 429 until the deadline"):
        Completions(url, deadline_s=0.05).complete([1], 1)


def test_other_errors_are_not_tried_again():
    with served(400) as (url, asked), pytest.raises(RunError, match="HTTP 400 no"):
        Completions(url).complete([1], 1)
    assert len(asked) == 1


def test_a_redirection_is_not_followed():
    with served(302) as (url, _), pytest.raises(RunError, match="HTTP 302"):
        Completions(url, key="secret").complete([1], 1)


@pytest.mark.parametrize("url", ["ftp://a/v1", "http://user:key@a/v1", "127.0.0.1:8000"])
def test_an_address_must_be_one_of_http(url):
    with pytest.raises(RequestError, match="base_url="):
        Completions(url)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(RunError, match=r"http://127.0.0.1:9/v1/models: .*[Rr]efused"):
        OpenAI(base_url="http://127.0.0.1:9/v1").start(Start(None, None, 64, 1))


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"vanilla_served": "a"}, "give vanilla=ADDRESS"),
        ({"served": "a", "vanilla": OpenAI.base_url, "vanilla_served": "a"}, "is measured"),
    ],
)
def test_two_servers_differ(settings, wrong):
    with pytest.raises(ValueError, match=wrong):
        OpenAI(**settings)


def test_a_key_comes_from_the_environment(monkeypatch):
    start = Start(None, None, 64, 1)
    with served(["a"]) as (url, asked):
        with pytest.raises(RequestError, match="no such environment variable"):
            OpenAI(base_url=url, key="TINY_KEY").start(start)
        monkeypatch.setenv("TINY_KEY", "secret")
        session = OpenAI(base_url=url, key="TINY_KEY").start(start)
        session.generate([1, 2], 3, exactly=True)
    body, key = asked[0]
    assert session.version == "server with tiny" and body["model"] == "tiny"
    assert body["ignore_eos"] is True and key == "Bearer secret"
    assert session.peak_bytes() is None


class Words:
    bos_token_id = 0

    def decode(self, ids):
        return "".join("_abc"[i] for i in ids)


def test_a_prompt_may_be_text_without_its_first_token():
    with served(["a"]) as (url, asked):
        OpenAI(base_url=url, send="text").start(Start(None, Words(), 64, 1)).generate([0, 1, 3], 1)
    assert asked[0][0]["prompt"] == "ac"
