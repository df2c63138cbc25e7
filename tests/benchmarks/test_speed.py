"""make speed: methods against vanilla, and against an earlier run."""

import sys

import pytest

from benchmarks import speed

SMALL = ("--lengths", "64", "--rounds", "1")


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["speed", *SMALL, *words])
    speed.main()


def test_each_method_is_compared_with_vanilla_and_with_a_saved_run(monkeypatch, tmp_path, capsys):
    file = tmp_path / "before.json"
    words = ("--parts", "attention", "--methods", "vanilla", "bigbird kernel=torch", "nothing")
    run(monkeypatch, *words, "--save", str(file))
    before = capsys.readouterr().out
    assert "attention of nothing at 64 tokens: RequestError: unknown method 'nothing'" in before
    run(monkeypatch, *words, "--against", str(file))
    lines = capsys.readouterr().out.splitlines()
    ratios = [line for line in lines if "× at 64" in line]
    assert len(ratios) == 4 and "attention vanilla " in ratios[0] and "1.00×" in ratios[0]
    assert ratios[3].startswith("attention bigbird kernel=torch (before)")


@pytest.mark.parametrize("part", speed.PARTS)
def test_each_part_runs(part):
    build, methods = speed.PARTS[part]
    assert methods[0] == "vanilla"
    for words in methods[:1] + methods[-1:]:
        if words not in speed.OFFICIAL:
            build(speed.method_of(words), 64)()
