"""The accepted values of a parameter: declared once, at the field, and checked before anything
runs."""

import os
import re
from dataclasses import fields
from typing import get_type_hints

import pytest

from bench.errors import RequestError
from bench.request import compose, overrides, parameters, plugins
from bench.sweep.grid import SweepGrid
from methods.base import Method
from methods.parts.parameters import TYPES, Range, Text, accepts, described

PLUGIN = """
from dataclasses import dataclass
from typing import Annotated, Literal

import methods.parts.parameters as p
from methods.base import Method
from methods.parts.parameters import Positive


@dataclass(frozen=True)
class Own(Method):
    free: int = -1
    other: list | None = None
    k: Positive | None = 1
    share: Annotated[float, p.Range(above=0, most=1)] = 0.5
    way: Literal["here"] = "here"
    noted: Annotated[int, "in tokens"] = 1
"""


def test_what_a_request_reads_is_what_the_class_has():
    for group in ("method", "task"):
        for name in plugins.available(group):
            conf = plugins.conf(group, name)
            assert parameters.checked(group, conf) == conf
            target = plugins.load(conf["target"])
            hints = get_type_hints(target, include_extras=True)
            hints = {one.name: hints[one.name] for one in fields(target) if one.init}
            found = parameters.field_types(conf["target"])
            assert found.items() <= hints.items()
            assert {field for field in hints if hints[field] in TYPES} <= found.keys()
            if group == "method":
                parts = {field for field in hints if hints[field] == Method | None}
                assert found.keys() == hints.keys() - parts


WRONG = [  # one of each kind
    ("vcc", "k=0", "a whole number, 1 or more"),
    ("vcc", "n_p=0", "a whole number, 1 or more or null"),
    ("vcc", "explore=1.5", "a finite number, 0 to 1"),
    ("vcc", "selection=best", "'attention', 'unnormalised'"),
    ("bigbird", "window=4", "a whole number, 1, 3, 5, …"),
    ("iceformer", "k0=0", "a finite number, above 0"),
    ("iceformer", "layers=8-", "'all', or such as '16-31' or '0,2,8-11' or a whole number"),
    ("fourier", "r=0", "a finite number, above 0 and at most 1"),
    ("fourier", "layers=-1", "such as '2,4'"),
    ("snapkv", "budget=0", "or bytes such as '64MiB'"),
    ("kivi", "bits=3", "2, 4"),
    ("h_transformer_1d", "rank=3", "1 or a whole number, 2, 4, 6, …"),
    ("longformer", "window=7", "a whole number, 2, 4, 6, …"),
    ("mra_s", "per_row=-1", "a finite number, 0 or more"),
    ("nystromformer", "convolution=4", "0 or a whole number, 1, 3, 5, …"),
    ("reformer", "buckets=3", "a whole number, 2, 4, 6, … or null"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "word", "accepted"), WRONG)
def test_a_value_out_of_range_is_refused(method, word, accepted):
    name, _, value = word.partition("=")
    [parsed] = overrides.parse([f"method.{word}"])
    conf = plugins.conf("method", method)
    with pytest.raises(RequestError) as refused:
        parameters.checked("method", {**conf, name: parsed.value()})
    told = str(refused.value)
    assert told.startswith(f"method.{word} is not accepted: it takes ") and accepted in told
    kind = plugins.load(conf["target"])
    given = int(value) if value.lstrip("-").isdecimal() else value
    with pytest.raises(ValueError, match=f"{name} is .*; it takes"):
        kind(**{name: float(value) if word == "explore=1.5" else given})


@pytest.mark.parametrize(("method", "word", "accepted"), WRONG[2:4])
def test_such_a_value_is_refused_when_it_is_composed(method, word, accepted):
    words = [f"method={method}", f"method.{word}"]
    told = f"method.{re.escape(word)} is not accepted: it takes .*{re.escape(accepted)}"
    with pytest.raises(RequestError, match=told):
        compose.compose(words)
    with pytest.raises(RequestError, match=told):
        list(SweepGrid.of([*words, "length=256,512"]).points())


def test_a_plugin_declares_what_it_likes(tmp_path, monkeypatch):
    (tmp_path / "own_ranges.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    conf = {"name": "own", "target": "own_ranges:Own", "free": -7, "other": [1], "noted": -1}
    assert parameters.checked("method", {**conf, "k": None, "share": 1}) == {
        **conf, "k": None, "share": 1.0
    }  # fmt: skip
    for name, value in (("k", 0), ("share", 0), ("way", "there"), ("free", "x"), ("noted", "x")):
        with pytest.raises(RequestError, match=f"method.{name}={value} is not accepted"):
            parameters.checked("method", {**conf, name: value})
    (tmp_path / "own_limits.py").write_text(PLUGIN.replace("most=1", "most=MOST"))
    with pytest.raises(RequestError, match=r"p\.Range\(above=0, most=MOST\): it takes literals"):
        parameters.checked("method", {**conf, "target": "own_limits:Own"})


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        ("iceformer", "layers=1", "layers='1'"),
        ("fourier", "layers=0", "layers='0'"),
        ("fourier", "r=1", "r=1.0"),
        ("vcc", "k=8", "k='8'"),
    ],
)
def test_one_value_has_one_form(method, one, other):
    first, second = (
        {name: repr(value) for name, value in compose.compose(words)["method"].items()}
        for words in ([f"method={method}", f"method.{word}"] for word in (one, other))
    )
    assert first == second


def test_a_number_is_text_where_text_is_meant():
    assert compose.compose(["task.licence=3"])["task"]["licence"] == "3"
    assert compose.compose(["method=fourier", "method.layers='2,4'"])["method"]["layers"] == "2,4"


@pytest.mark.parametrize("word", ["={bigbird: {window: 5}}", ".bigbird.window=5"])
def test_a_recipe_takes_the_parameters_that_a_method_trains_with(word):
    words = ["recipe=lra_small_listops", "method=bigbird", f"recipe.trained_with{word}"]
    assert compose.compose(words)["method"]["window"] == 5
    with pytest.raises(RequestError, match=r"method\.window=4 is not accepted"):
        compose.compose([*words[:2], words[2].replace("5", "4")])


def test_ranges_and_types_in_words():
    assert 3 in Range(least=3) and 2 not in Range(least=3)
    assert 5 in Range(least=3, step=2) and 4 not in Range(least=3, step=2)
    assert [x in Range(above=0, most=1) for x in (0, 0.1, 1, 1.1)] == [False, True, True, False]
    assert str(Range(most=2)) == "at most 2" and str(Range(least=0, most=1)) == "0 to 1"
    assert "a,b" in Text("[a-z,]+", "such as 'a,b'") and "1" not in Text("[a-z]+", "x")
    kinds = ((True, [bool]), (1, [int, float]), (0.5, [float]), ("a", [str]), (10**400, [int]))
    for value, hints in kinds:
        assert [hint for hint in TYPES if accepts(hint, value)] == hints, value
    assert not accepts(float, float("nan")) and accepts(os.PathLike, "any other type")
    assert described(int | None) == "a whole number or null"


def test_a_file_of_numbers_is_its_text(tmp_path):
    """A row has the numbers, and another table in the same file makes another cell."""
    file, words = tmp_path / "heads.tsv", ["method=duo_attention", "model=embedded-llama"]
    file.write_text("1\t.5\n\n0\t-9e-5\n")
    of_file = compose.compose([*words, f"method.pattern={file}"])
    assert of_file == compose.compose([*words, "method.pattern='1 .5; 0 -9e-5'"])
    file.write_text("one\n")
    assert compose.compose([*words, f"method.pattern={file}"])["method"]["pattern"] == str(file)
