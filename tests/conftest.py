"""Shared parts of tests: snapshots, commands in this process, folders of configuration, a tiny
random T5 checkpoint and the folder of real rows."""

import difflib
import gc
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: read when torch is first imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()  # while tests are collected

ROOT = Path(__file__).resolve().parent.parent
REAL_ROWS = Path(os.environ.get("DATA_DIR") or ROOT.parent / "shared" / "data")
"""The benchmarks' own files, in the layouts that docs/tasks.md lists."""
TINY_MODELS = ("methods", "models", "embedded", "conformance")
"""Folders of tests of models that gain nothing from threads."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write snapshots/ anew")


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with snapshots/NAME.txt next to the test."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "snapshots" / f"{name}.txt"
        now = [line.rstrip() for line in text.splitlines()]
        if request.config.getoption("--update-snapshots"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(now) + "\n")
        kept = path.read_text().splitlines() if path.exists() else []
        changed = list(difflib.unified_diff(kept, now, "kept", "now", lineterm=""))
        again = f"if this is right: pytest {request.path} --update-snapshots"
        assert not changed, "\n".join([*changed, again])

    return compare


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command of `bench` in this process: its exit code, output and standard error."""
    from bench.cli.main import dispatch

    def run(*words: object) -> tuple[int, str, str]:
        code = dispatch([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(command: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command of `bench` that is a wrong request: its one line of standard error."""

    def run(*words: object) -> str:
        code, _, error = command(*words)
        [line] = error.splitlines()
        assert code == 2 and line.startswith("bench: ")
        return line

    return run


class Said(NamedTuple):
    """A line of a transcript that starts a command, and the command's end."""

    line: str
    code: int
    out: str
    error: str


@pytest.fixture
def transcript(
    command: Callable[..., tuple[int, str, str]], snapshot: Callable[[str, str], None],
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., list[Said]]:  # fmt: skip
    """Runs the commands of snapshots/NAME.txt, its lines that start with `$ bench`, in tmp_path and
    compares it with what they print, in lines of at most `width` characters, and exit codes other
    than 0. For a new command, write its line there and run the test with --update-snapshots."""

    def run(name: str, width: int | None = None) -> list[Said]:
        monkeypatch.chdir(tmp_path)
        for variable in ("COLUMNS", "FORCE_COLOR"):
            monkeypatch.delenv(variable, raising=False)
        path = request.path.parent / "snapshots" / f"{name}.txt"
        asked = [line for line in path.read_text().splitlines() if line.startswith("$ bench ")]
        said = [Said(line, *command(*shlex.split(line)[2:])) for line in asked]
        lines: list[str] = []
        for one in said:
            told = (one.out + one.error).replace(str(tmp_path), "FOLDER")
            lines += [one.line, *(line[:width] for line in told.splitlines())]
            lines += [f"[{one.code}]"] if one.code else []
        snapshot(name, "\n".join(lines))
        return said

    return run


@pytest.fixture
def conf_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose YAMLs are part of the configuration."""
    from bench.request import plugins

    folder = tmp_path / "conf"
    folder.mkdir()
    monkeypatch.setenv(plugins.CONF_PATH, str(folder))
    plugins.conf_dirs.cache_clear()
    yield folder
    plugins.conf_dirs.cache_clear()


def pytest_collection_finish() -> None:
    """Freezes the objects loaded so far. Repeated garbage collection of them took a sixth of the
    time of tests that compose requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models run several times as fast on one thread, which waits for no other; the native
    kernels keep all."""
    if request.path.parent.name not in TINY_MODELS or "kernels" in request.path.name:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def own_results(request: pytest.FixtureRequest) -> None:
    """A request without `results=` reads and writes results/runs of the current directory."""
    if request.path.parent.name in ("request", "sweep"):
        folders = request.getfixturevalue("tmp_path_factory")
        request.getfixturevalue("monkeypatch").chdir(folders.mktemp("checkout"))


def word_tokenizer(text: list[str], special: str = "<pad> </s> <unk>", single: str = "$A </s>"):
    """A tokenizer of the words and marks of a text, with special tokens, that adds those of
    `single`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
    )
    tokens = special.split()
    trainer = trainers.WordLevelTrainer(special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        special_tokens=[(one, i) for i, one in enumerate(tokens) if one in single.split()],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder as a user would have one: 2+2 layers of size 32, random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from tasks.generators import stories

    folder = tmp_path_factory.mktemp("tiny-t5")
    tokenizer = word_tokenizer([stories.story("train", i, 2048).text for i in range(4)])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "decoder_start_token_id": 0}
    layers = {"num_layers": 3, "num_decoder_layers": 2}
    config = T5Config(vocab_size=len(tokenizer), **sizes, **layers)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.fixture
def real_rows() -> Path:
    if not REAL_ROWS.is_dir():
        pytest.skip(f"no real rows in {REAL_ROWS}: give DATA_DIR")
    return REAL_ROWS
