"""Times of the same methods on several processors."""

from reports import processors
from tests import made


def row(method, processor, sets, **more):
    shared = {"experiment": "kv_times", "measure": "tokens", "model": "smollm2-135m",
              "dtype": "float32", "threads": 1, "length": 2048, "status": "ok"}  # fmt: skip
    times = {"tpot_median_ns": 5e7, "tpot_ratio": None}
    if method != "vanilla":
        times |= {"tpot_ratio": 0.9, "tpot_ratio_ci_lo": 0.8, "tpot_ratio_ci_hi": 0.95,
                  "tpot_verdict": "faster"}  # fmt: skip
    names = {"method": method, "cpu_model": processor, "host_id": processor}
    return made.full(**shared | times | names | more, instruction_sets=sets)


def test_a_table_has_the_methods_that_two_processors_timed():
    rows = [
        row("vanilla", "A", "avx2 avx512f"),
        row("snapkv·0.25", "A", "avx2 avx512f"),
        row("kivi·4", "A", "avx2 avx512f"),
        row("vanilla", "B", "avx2", tpot_median_ns=6e7),
        row("snapkv·0.25", "B", "avx2", tpot_ratio=1.1, tpot_verdict="slower"),
        row("snapkv·0.25", "B", "avx2", threads=2),
        row("kivi·4", "B", "avx2", length=8192),
    ]
    [(grid, _)] = processors.PROCESSORS.tables(processors.by_processor(rows))
    assert grid.caption == "Each token with a cache, 2,048 tokens"
    assert grid.head == ["method", "A (AVX-512)", "B (AVX2)"]
    assert grid.lines == [
        ["vanilla", "50 ms", "60 ms"],
        ["snapkv·0.25", "×0.90 (0.80 … 0.95) faster", "×1.10 (0.80 … 0.95) slower"],
    ]


def test_one_processor_alone_has_no_table():
    rows = [row("vanilla", "A", "avx2"), row("snapkv·0.25", "A", "avx2")]
    assert processors.by_processor(rows) == []
