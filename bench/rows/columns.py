"""Every column of a row: its name, its type and its meaning.

One row is one cell. Times are integer nanoseconds, memory is integer bytes, ratios are
method / vanilla. A column that was not measured is null, and a column `…_reason` contains
the reason.
`Row` and `Comparison` are the only definitions: `COLUMNS` and the parquet schema are read from
them. Neither pyarrow nor pandas is imported here, so that `bench ls` stays quick.
"""

from collections.abc import Iterable
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Union, get_args, get_origin

from bench.rows import comparison
from bench.status import QualityComparison, QualityVerdict, Status, WeightsProtocol

SCHEMA_VERSION = 2

FUSED_KERNEL = "torch"
"""Value of `kernel` and `engine_kernel` for torch's fused attention, on which vanilla runs."""
WIDENED_TO_ALONE = "widened to the time alone"
"""Part of `lat_ratio_ci_method`: the method's time without vanilla was outside the interval."""
Json = Annotated[str, "json"]
"""Text of JSON. `Store.append` takes the object itself, too."""
WeightsKind = Literal[
    "pretrained", "pretrained-swap", "finetuned", "from-scratch", "embedded", "random", "zero-shot"
]
DataSource = Literal["embedded", "local", "hub"]


class Row(TypedDict, total=False):
    """A row inside the process. A row read from a store has every column; others have the columns
    known so far. Every run fills in the columns whose type excludes None. Columns of paired
    comparisons are read as records (`comparison.Comparison.of`)."""

    # identity
    schema_version: Annotated[int, "version of these columns"]
    row_id: Annotated[str, "unique; a row read twice is counted once"]
    cell_key: Annotated[str, "sha256 over everything that can change the numbers"]
    cell: Annotated[Json | None, "the whole cell"]
    run_id: Annotated[str, "one command's rows share it"]
    created_utc: Annotated[str, "ISO 8601, UTC, when the row was stored"]
    protocol: Annotated[str, "version of the measuring procedure"]
    measure: Annotated[str, "how much was measured: quick, published, …"]
    method: Annotated[str, "name of the method"]
    method_version: Annotated[str, "hash of the method's code"]
    method_params: Annotated[Json | None, "the method's own parameters"]
    kernel: Annotated[str | None, "native or fallback code that did the work"]
    benchmark: Annotated[str, "collection that the task belongs to (LRA, SCROLLS, …)"]
    task: Annotated[str, "name of the task"]
    task_version: Annotated[str, "hash of the task's code and declaration"]
    split: Annotated[str, "split of the data"]
    data_source: Annotated[DataSource, "embedded (shipped), local (folder), hub (pinned revision)"]
    dataset_sha256: Annotated[str | None, "sha256 of the samples' source"]
    n_samples_planned: Annotated[int | None, "samples asked for"]
    n_samples_available: Annotated[int | None, "samples that the split holds"]
    n_unanswerable: Annotated[int | None, "samples left out because they have no right answer"]
    n_samples_official: Annotated[int | None, "samples in the benchmark by its own count"]
    model: Annotated[str, "name of the model"]
    weights_kind: Annotated[WeightsKind, "where the weights come from"]
    weights_sha256: Annotated[str | None, "sha256 of the weights"]
    weights_source: Annotated[str | None, "hub, package or file that the weights were taken from"]
    weights_revision: Annotated[str | None, "its commit, or sha256 of the file or wheel"]
    weights_format: Annotated[str | None, "number format that they were dequantised from"]
    weights_licence: Annotated[str | None, "licence of the weights"]
    code_sha: Annotated[str | None, "commit of this project"]
    code_dirty: Annotated[bool | None, "its code differed from that commit"]
    command: Annotated[str | None, "command that gives this row again"]
    experiment: Annotated[str | None, "experiment that requested it"]
    launcher: Annotated[str | None, "what started the run: local, joblib, slurm, …"]
    slurm_job_id: Annotated[str | None, "job number on a cluster"]
    node: Annotated[str | None, "name of the cluster's node"]
    ran_beside: Annotated[str | None, "other jobs and workers on the machine, as far as known"]
    # shape
    length: Annotated[int, "tokens a sample may have"]
    filled: Annotated[bool | None, "true: timed inputs were filled up to `length` tokens"]
    timed_tokens: Annotated[float | None, "tokens of a timed input, the mean"]
    positions_learned: Annotated[
        int | None, "its learned positions, where longer inputs reuse them"
    ]
    positions_rotary: Annotated[
        int | None, "a decoder's max_position_embeddings, where inputs are longer"
    ]
    window_layers_exact: Annotated[
        int | None, "layers left exact: they have a window, which the method ignores"
    ]
    generation_ignored: Annotated[
        str | None, "settings of its generation_config.json that were not applied"
    ]
    batch: Annotated[int, "samples in one forward"]
    dtype: Annotated[str, "number format of weights and activations"]
    device: Annotated[str, "cpu or cuda"]
    threads: Annotated[int, "threads of the measured process"]
    seed: Annotated[int, "seed of weights, data order and sampling"]
    tokens_in_mean: Annotated[float | None, "tokens of a sample before truncation"]
    tokens_in_estimated: Annotated[bool | None, "true: for texts far longer than `length`"]
    tokens_seen_mean: Annotated[float | None, "tokens of a sample that the model saw"]
    truncated_frac: Annotated[float | None, "share of tokens that truncation removed, 0 to 1"]
    answer_cut_frac: Annotated[float | None, "share of samples whose answer was removed, 0 to 1"]
    prompt: Annotated[str | None, "of a decoder: plain, or chat: in a turn of its chat template"]
    stop: Annotated[Json | None, "strings that ended an answer"]
    truncation_side: Annotated[str | None, "side that was cut"]
    tokens_per_word: Annotated[float | None, "tokens of a sample / words between spaces"]
    unknown_tokens_frac: Annotated[float | None, "share of tokens unknown to the tokenizer, 0 to 1"]
    max_length_fit: Annotated[int | None, "longest length that ran within memory"]
    max_length_end: Annotated[Status | None, "how a sixteenth longer one ended"]
    # status
    status: Annotated[Status, "how the cell ended"]
    status_stage: Annotated[str | None, "stage that ended it: load, warmup, latency, quality, …"]
    status_detail: Annotated[str | None, "last lines of its output"]
    exit_signal: Annotated[int | None, "signal that ended the child"]
    attempt: Annotated[int, "1 for the first try"]
    wall_total_ns: Annotated[int | None, "time of the whole cell"]
    baseline_status: Annotated[Status | None, "how vanilla ended at this cell"]
    baseline_reason: Annotated[str | None, "why vanilla has no figure"]
    # quality
    metric: Annotated[str | None, "name of the main official metric"]
    metric_version: Annotated[str | None, "hash of the metric's code"]
    value: Annotated[float | None, "main metric, in the official scale"]
    stderr: Annotated[float | None, "its standard error"]
    ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    ci_hi: Annotated[float | None, "upper end"]
    ci_method: Annotated[str | None, "how the interval was made"]
    metrics: Annotated[Json | None, "all official figures"]
    score_by_length: Annotated[Json | None, "samples and score by bins of untruncated length"]
    n_scored: Annotated[int | None, "samples that have a score"]
    n_failed: Annotated[int | None, "samples that failed"]
    higher_is_better: Annotated[bool | None, "direction of the metric"]
    predictions_path: Annotated[str | None, "folder of predictions"]
    predictions_sha256: Annotated[str | None, "sha256 over ids and predictions"]
    base_value: Annotated[float | None, "vanilla's main metric on the same samples"]
    base_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    base_ci_hi: Annotated[float | None, "upper end"]
    base_score_by_length: Annotated[Json | None, "vanilla's in each bin of input length"]
    base_predictions_sha256: Annotated[str | None, "sha256 over vanilla's ids and predictions"]
    value_diff: Annotated[float | None, "value − base_value over shared samples"]
    value_diff_ci_lo: Annotated[float | None, "lower end of its 95 % interval"]
    value_diff_ci_hi: Annotated[float | None, "upper end"]
    value_diff_detectable: Annotated[float | None, "difference shown with probability 0.8"]
    quality_verdict: Annotated[QualityVerdict | None, "verdict by the interval of `value_diff`"]
    quality_comparison: Annotated[QualityComparison | None, "weights of `value` and `base_value`"]
    chance: Annotated[float | None, "score of the best constant answer, or a guess among options"]
    chance_reason: Annotated[str | None, "why it isn't known"]
    at_chance: Annotated[bool | None, "the interval of `value`, if any, doesn't lie above chance"]
    batched_answers: Annotated[
        int | None, "answers decoded in a batch, with other texts' and other methods'"
    ]
    quality_ns: Annotated[int | None, "time of answering, both arms' processes; not of scoring"]
    base_quality_ns: Annotated[int | None, "the part of it in vanilla's process"]
    quality_load_ns: Annotated[int | None, "time until model and inputs were loaded, first to last"]
    quality_prefill_ns: Annotated[
        int | None, "a decoder's time to read the prompts, vanilla's too in the same batches"
    ]
    quality_decode_ns: Annotated[int | None, "time to answer without that"]
    scoring_ns: Annotated[int | None, "time to score stored predictions"]
    # latency
    load_ns: Annotated[int | None, "time to build the model"]
    first_call_ns: Annotated[int | None, "first, cold call"]
    warmup_calls: Annotated[int | None, "calls before the first sample"]
    warmup_converged: Annotated[bool | None, "the running median had settled"]
    lat_page_faults: Annotated[int | None, "page faults of one call, the method's mean"]
    base_page_faults: Annotated[int | None, "the same of vanilla"]
    large_memory_kept: Annotated[bool | None, "true: large blocks kept by size; false: given back"]
    wall_samples_ns: Annotated[list[int] | None, "method's wall time if the device has the clock"]
    attend_ns: Annotated[int | None, "time inside the method's attention"]
    encode_ns: Annotated[int | None, "time inside the method's walk over the layers"]
    attend_samples_ns: Annotated[list[int] | None, "time inside its attention, of each walk"]
    encode_samples_ns: Annotated[list[int] | None, "time of each of these walks"]
    prefill_ns: Annotated[int | None, "time to read the input"]
    decode_ns_per_token: Annotated[int | None, "time of each further token"]
    tokens_out: Annotated[int | None, "tokens generated"]
    gemm_gflops: Annotated[float | None, "matrix product speed of this host at measuring time"]
    # memory
    mem_method: Annotated[str | None, "how it was read: VmHWM, 'VmRSS, sampled', cuda_allocator"]
    mem_reason: Annotated[str | None, "why there is no memory figure"]
    rss_base_bytes: Annotated[int | None, "resident before the forward"]
    rss_peak_delta_bytes: Annotated[int | None, "peak of one cold forward above that"]
    rss_peak_warm_delta_bytes: Annotated[int | None, "peak of one warm forward above that"]
    alloc_peak_bytes: Annotated[int | None, "peak of torch's own allocations"]
    weights_bytes: Annotated[int | None, "size of the weights"]
    state_theory_bytes: Annotated[int | None, "memory by the method's formula"]
    gpu_alloc_delta_bytes: Annotated[int | None, "peak of allocated GPU memory above the base"]
    gpu_reserved_bytes: Annotated[int | None, "peak of reserved GPU memory"]
    gpu_nvml_bytes: Annotated[int | None, "GPU memory of the process by its driver, at the peak"]
    base_rss_base_bytes: Annotated[int | None, "vanilla's resident before the forward"]
    base_rss_peak_delta_bytes: Annotated[int | None, "vanilla's cold peak"]
    base_rss_peak_warm_delta_bytes: Annotated[int | None, "vanilla's warm peak"]
    base_alloc_peak_bytes: Annotated[int | None, "vanilla's peak of torch's allocations"]
    base_gpu_alloc_delta_bytes: Annotated[int | None, "vanilla's peak of allocated GPU memory"]
    base_gpu_reserved_bytes: Annotated[int | None, "vanilla's peak of reserved GPU memory"]
    base_gpu_nvml_bytes: Annotated[int | None, "vanilla's GPU memory as the driver sees it"]
    mem_ratio: Annotated[float | None, "peak memory, method / vanilla"]
    whole_peak_bytes: Annotated[int | None, "peak of the whole process, weights and libraries too"]
    base_whole_peak_bytes: Annotated[int | None, "vanilla's"]
    whole_peak_ratio: Annotated[float | None, "peak of the whole process, method / vanilla"]
    prefix_first_token_ratio: Annotated[
        float | None, "first token of a prompt that repeats most of the last one / of a new prompt"
    ]
    mem_agree: Annotated[bool | None, "measured and theoretical memory agree"]
    # fidelity
    fid_rel_l2: Annotated[float | None, "relative error of the output against exact attention"]
    fid_max_abs: Annotated[float | None, "largest absolute error"]
    fid_cos_min: Annotated[float | None, "cosine of the worst token"]
    fid_kl_mean: Annotated[float | None, "mean KL divergence of the predictions"]
    fid_top1_agree: Annotated[float | None, "share of equal first choices, 0 to 1"]
    fid_rounding: Annotated[float | None, "relative error of rounding inside the method, estimated"]
    dtype_effective: Annotated[str | None, "number format that has that error; only for float32"]
    fid_recall: Annotated[float | None, "share of the heaviest keys that the method read, 0 to 1"]
    fid_mass: Annotated[float | None, "share of exact attention's weight on the keys read, 0 to 1"]
    fid_mass_best: Annotated[float | None, "the heaviest keys' share, 0 to 1: no choice has more"]
    prefill_skipped_frac: Annotated[
        float | None, "share of the tiles of scores that a sparse prefill left out, 0 to 1"
    ]
    fid_reason: Annotated[str | None, "why there is no fidelity"]
    # host
    host_id: Annotated[str, "hash of what stays the same on this machine"]
    cpu_model: Annotated[str | None, "name of the processor"]
    instruction_sets: Annotated[str | None, "vector instruction sets of the processor"]
    cores_phys: Annotated[int | None, "physical cores of the machine"]
    cores_logical: Annotated[int | None, "logical cores of the machine"]
    affinity: Annotated[str | None, "numbers of the logical cores that its threads may use"]
    smt: Annotated[bool | None, "cores run two threads each"]
    governor: Annotated[str | None, "frequency governor"]
    cgroup_cpu: Annotated[float | None, "cores that the control group grants"]
    cgroup_mem_bytes: Annotated[int | None, "memory that the control group grants"]
    mem_total_bytes: Annotated[int | None, "memory of the machine"]
    numa: Annotated[int | None, "memory nodes"]
    libc: Annotated[str | None, "C library"]
    os_kernel: Annotated[str | None, "operating system's kernel"]
    virt: Annotated[str | None, "virtual machine or container"]
    steal_pct: Annotated[float | None, "processor time taken by other guests"]
    load1: Annotated[float | None, "load average of the last minute, before measuring"]
    others_pct: Annotated[float | None, "these cores' time that other processes took meanwhile"]
    ctx_switch_invol: Annotated[int | None, "times that the process was made to wait"]
    throttled: Annotated[bool | None, "the control group stopped the process for a while"]
    noisy: Annotated[bool, "the host was too busy for a fair measurement"]
    noise_reason: Annotated[str | None, "what made it noisy"]
    gpu_name: Annotated[str | None, "name of the GPU"]
    gpu_driver: Annotated[str | None, "version of its driver"]
    python: Annotated[str | None, "version of Python"]
    torch: Annotated[str | None, "version of torch"]
    blas: Annotated[str | None, "library of matrix products"]
    onednn: Annotated[str | None, "version of oneDNN"]
    packages_sha: Annotated[str | None, "hash of the installed packages and versions"]
    # the GPU while it was timed
    gpu_clock_mhz: Annotated[int | None, "clock of its multiprocessors, right after the timing"]
    gpu_memory_clock_mhz: Annotated[int | None, "clock of its memory, then"]
    gpu_throttle_reasons: Annotated[str | None, "what kept its clocks down, or none"]
    gpu_throttled_ns: Annotated[int | None, "how long power or temperature did, by its driver"]
    gpu_flushed_bytes: Annotated[int | None, "written before each timed call: clears L2"]
    # energy
    energy_j: Annotated[float | None, "energy of one call, by a meter of the whole device"]
    energy_source: Annotated[str | None, "the meter: rapl or nvml"]
    energy_reason: Annotated[str | None, "why there is none"]
    # training
    weights_protocol: Annotated[WeightsProtocol | None, "how method and weights came together"]
    recipe: Annotated[str | None, "name of the recipe that trained the weights"]
    recipe_params: Annotated[Json | None, "its hyper-parameters"]
    checkpoint_key: Annotated[str | None, "sha256 over all that shapes the trained weights"]
    train_steps: Annotated[int | None, "steps until the weights that count"]
    train_wall_ns: Annotated[int | None, "time that their training took"]
    train_dev_score: Annotated[float | None, "accuracy or minus the loss on dev rows, then"]
    training: Annotated[Json | None, "of the weights: from, steps, hours, supervision"]
    base_training: Annotated[Json | None, "of the weights that `base_value` was measured with"]
    base_weights_sha256: Annotated[str | None, "sha256 of these weights"]
    train_peak_bytes: Annotated[int | None, "peak of one cold training step above the loaded model"]
    base_train_peak_bytes: Annotated[int | None, "vanilla's"]
    train_mem_ratio: Annotated[float | None, "peak memory of a training step, method / vanilla"]
    # decoding: docs/decoding.md explains it; N is `new_tokens`
    new_tokens: Annotated[int | None, "tokens decoded after each prompt; null: not measured"]
    question: Annotated[str | None, "after: read once the KV cache is made; null: in the prompt"]
    turns: Annotated[int | None, "questions on each text, one after the other; null: one"]
    tokens_per_s: Annotated[float | None, "new tokens of all rows in a second, after the first"]
    base_tokens_per_s: Annotated[float | None, "vanilla's"]
    # the cache of keys and values
    kv_bytes_held: Annotated[int | None, "storage of all that the cache holds after the last token"]
    kv_bytes_held_prefill: Annotated[int | None, "after the prompt"]
    kv_bytes_resident: Annotated[int | None, "resident memory with it less that without it"]
    kv_bytes_read_per_token: Annotated[int | None, "bytes of it that each new token of a row read"]
    kv_read_reported_pct: Annotated[float | None, "of bytes counted in a step; null: not counted"]
    kv_bytes_full: Annotated[int | None, "keys and values of all tokens: 2·L·G·d·n·B numbers"]
    kv_entries: Annotated[float | None, "entries of each key head, the mean over layers"]
    base_kv_bytes_held: Annotated[int | None, "vanilla's storage after the last token"]
    base_kv_bytes_held_prefill: Annotated[int | None, "after the prompt"]
    base_kv_bytes_resident: Annotated[int | None, "vanilla's resident memory of its cache"]
    base_kv_bytes_read_per_token: Annotated[int | None, "bytes that vanilla read"]
    kv_held_ratio: Annotated[float | None, "bytes held, method / vanilla"]
    kv_read_ratio: Annotated[float | None, "bytes read for a new token, method / vanilla"]
    kv_ratio_16bit: Annotated[float | None, "bytes held / keys and values of all tokens in 16 bits"]
    kv_reason: Annotated[str | None, "why there is no figure of the cache"]
    # fidelity along vanilla's greedy answer
    decode_kl_mean: Annotated[float | None, "KL divergence from vanilla, mean over N tokens"]
    decode_kl_first_quarter: Annotated[float | None, "over the first quarter of them"]
    decode_kl_last_quarter: Annotated[float | None, "over the last quarter"]
    decode_top1_agree: Annotated[float | None, "share of equal first choices, 0 to 1"]
    decode_top1_first_quarter: Annotated[float | None, "in the first quarter, 0 to 1"]
    decode_top1_last_quarter: Annotated[float | None, "in the last quarter, 0 to 1"]


class Column(NamedTuple):
    """`type` is int64, float64, bool, string, json (a string of JSON) or list<int64>;
    `values`, when not empty, are the only accepted values."""

    name: str
    type: str
    meaning: str
    values: tuple[str, ...] = ()


_TYPES: dict[Any, str] = {
    int: "int64", float: "float64", bool: "bool", str: "string", Json: "json",
    list[int]: "list<int64>",
}  # fmt: skip


def _column(name: str, hint: Any) -> Column:
    kind, (meaning,) = hint.__origin__, hint.__metadata__
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    enumerated = isinstance(kind, type) and issubclass(kind, StrEnum)
    values = tuple(kind) if enumerated else get_args(kind) if get_origin(kind) is Literal else ()
    return Column(name, "string" if values else _TYPES[kind], meaning, values)


COLUMNS = {
    name: _column(name, hint)
    for name, hint in (*Row.__annotations__.items(), *comparison.annotations())
}


def value_of(row: Row, name: str) -> Any:
    """The value of a column whose name is chosen at run time."""
    return row[name]  # type: ignore[literal-required]


def arrow_schema(names: Iterable[str] | None = None) -> Any:
    """The columns, or those of `names`, as a `pyarrow.Schema`."""
    import pyarrow as pa

    named = {"json": pa.string(), "list<int64>": pa.list_(pa.int64())}
    types = ((name, COLUMNS[name].type) for name in (COLUMNS if names is None else names))
    return pa.schema([(name, named.get(kind, kind)) for name, kind in types])
