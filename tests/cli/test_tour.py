"""docs/tour.md: its commands run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.conftest import ROOT

COMMANDS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "tour.md").read_text(), re.DOTALL)


def test_every_command_of_the_tour_runs(tmp_path):
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "bench"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}:$PYTHONPATH" exec "{sys.executable}" -m bench "$@"\n'
    )
    script.chmod(0o755)
    # As at a prompt: what fails ends the tour.
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(COMMANDS)],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    tour = tmp_path / "tour"
    assert "nearest" in (tour / "rows" / "page.html").read_text()
    assert (tour / "nearest.py").is_file()
    assert (tour / "conf" / "task" / "quiz.yaml").is_file()
    assert "quiz" in done.stdout
