"""The wheel contains all files for a run: it is built, unpacked and used from another directory."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.conftest import ROOT

PROGRAM = """
import sys
import bench
from bench.cli.main import main
print(bench.__file__)
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder of the unpacked wheel; the checkout isn't on its path."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    done = subprocess.run([*command, place], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = place.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(place / "site")
    return place / "site"


def bench(wheel, folder, *words):
    """`bench` of the wheel, run from a folder. Paths in PYTHONPATH are not searched for the .pth
    files that make the checkout importable."""
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("BENCH_", "PYTEST_"))}
    settings["PYTHONPATH"] = os.pathsep.join([str(wheel), packages])
    command = [getattr(sys, "_base_executable", sys.executable), "-c", PROGRAM, *words]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)


def test_a_cell_runs_from_any_directory(wheel, tmp_path):
    words = ("method=vcc", "length=256", "n=1", "measure=quality", "threads=1")
    done = bench(wheel, tmp_path, "run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(str(wheel))
    assert "embedded (toy weights)" in done.stdout and "f1 (n=1)" in done.stdout
    assert len(list((tmp_path / "results" / "runs").glob("*.parquet"))) == 1


def test_a_model_of_the_other_wheel_is_named_with_its_package(wheel, tmp_path):
    done = bench(wheel, tmp_path, "run", "model=embedded-bart", "length=256", "n=1")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "embedded/bart; pip install 'longctx-bench[models]' adds it" in done.stderr


def test_published_numbers_and_the_page_travel_too(wheel, tmp_path):
    done = bench(wheel, tmp_path, "report", "vcc_table1", "--out", "tables")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "tables").glob("vcc_table1.*"))


def test_studies_run_from_the_wheel(wheel, tmp_path):
    words = ("--keys", "300", "--queries", "5", "--dims", "8", "--repeats", "1", "--threads", "1")
    done = bench(wheel, tmp_path, "recall", *words, "--results", "rows")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "rows" / "studies").glob("recall-*.csv"))


def test_a_new_method_is_written_where_the_user_stands(wheel, tmp_path):
    done = bench(wheel, tmp_path, "new", "method", "nearest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "conf" / "method" / "nearest.yaml").is_file()
    shutil.rmtree(tmp_path / "conf")
