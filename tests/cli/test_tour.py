"""docs/tour.md: its commands run unchanged."""

import os
import re
import subprocess
import sys

from tests.conftest import ROOT

SECTIONS = {
    text[0]: "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    for text in (ROOT / "docs" / "tour.md").read_text().split("\n## ")[1:]
}
"""The number of a section → its commands."""


def on_one_core():
    """Threads of two small cells that run at once would wait for each other most of the time."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def tour(folder, *sections):
    """The output of the sections' commands, which stop at a failing one, as at a prompt; and its
    files."""
    (folder / "bench").symlink_to(ROOT / "bench")
    programs = folder / "bin"
    programs.mkdir()
    script = programs / "bench"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}:$PYTHONPATH" exec "{sys.executable}" -m bench "$@"\n'
    )
    script.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(SECTIONS[number] for number in sections)],
        cwd=folder, capture_output=True, text=True, preexec_fn=on_one_core,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, folder / "tour"


def test_a_first_cell_runs(tmp_path):
    said, _ = tour(tmp_path, "1", "2")
    assert "latency, ms" in said and "peak memory" in said


def test_a_method_of_ones_own_gets_its_page(tmp_path):
    _, files = tour(tmp_path, "1", "3", "6", "7")
    assert (files / "nearest.py").is_file()
    assert "nearest" in (files / "rows" / "page.html").read_text()


def test_a_model_and_a_task_of_ones_own_run(tmp_path):
    said, files = tour(tmp_path, "1", "4", "5")
    assert (files / "conf" / "task" / "quiz.yaml").is_file()
    assert "quiz" in said


def test_every_command_of_the_tour_is_run_by_one_of_these():
    assert {number for number, commands in SECTIONS.items() if commands} == set("1234567")
