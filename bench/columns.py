"""Every column of a row: its name, its type and what it means.

One row is one cell. Times are integer nanoseconds, memory is integer bytes, ratios are
method / vanilla. A column that wasn't measured is null, and a `…_reason` beside it says why.
This file names pyarrow types but doesn't import it, so that `bench ls` stays quick.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA_VERSION = 1

STATUS = ("ok", "oom_host", "oom_device", "timeout", "error", "unsupported", "skipped")
VERDICT = ("faster", "slower", "same", "undecided")
WEIGHTS = ("pretrained-swap", "finetuned", "from-scratch", "embedded", "random", "zero-shot")
SOURCES = ("embedded", "local", "hub")
PROTOCOLS = ("from-scratch", "finetune", "swap", "zero-shot")


class Column(NamedTuple):
    """`type` is int64, float64, bool, string, json (a string of JSON) or list<int64>;
    `values`, when not empty, are the only words that may stand in it."""

    name: str
    type: str
    group: str
    meaning: str
    values: tuple[str, ...] = ()


def _group(group: str, text: str) -> list[Column]:
    """Columns from lines of `name type meaning`."""
    lines = (line.split(None, 2) for line in text.strip().splitlines())
    return [Column(name, kind, group, what, _WORDS.get(name, ())) for name, kind, what in lines]


_WORDS = {
    "status": STATUS,
    "baseline_status": STATUS,
    "verdict": VERDICT,
    "aa_verdict": VERDICT,
    "train_verdict": VERDICT,
    "weights_protocol": PROTOCOLS,
    "weights_kind": WEIGHTS,
    "data_source": SOURCES,
}

_IDENTITY = """
schema_version        int64   version of these columns
row_id                string  unique; a row met twice is counted once
cell_key              string  sha256 over everything that can change the numbers
cell                  json    the whole cell
run_id                string  one command's rows share it
created_utc           string  ISO 8601, UTC, when the row was stored
protocol              string  version of the measuring procedure
measure               string  how much was measured: quick, published, …
method                string  name of the method
method_version        string  hash of the method's code
method_params         json    the method's own parameters
kernel                string  native or fallback code that did the work
benchmark             string  collection that the task belongs to (LRA, SCROLLS, …)
task                  string  name of the task
task_version          string  hash of the task's code and declaration
split                 string  split of the data
data_source           string  embedded (shipped), local (a folder) or hub (a pinned revision)
dataset_sha256        string  sha256 of the samples' source
n_samples_planned     int64   samples asked for
n_samples_available   int64   samples that the split holds
n_samples_official    int64   samples that the benchmark says it holds
model                 string  name of the model
weights_kind          string  where the weights come from
weights_sha256        string  sha256 of the weights
code_sha              string  commit of this project
code_dirty            bool    its code differed from that commit
config_sha            string  sha256 of the composed configuration
command               string  command that gives this row again
launcher              string  what started the run: local, joblib, slurm, …
slurm_job_id          string  job number on a cluster
node                  string  name of the cluster's node
ran_beside            string  what else ran on the machine, as far as known: jobs, workers
"""

_SHAPE = """
length                int64   tokens a sample may have
batch                 int64   samples in one forward
dtype                 string  number format of weights and activations
device                string  cpu or cuda
threads               int64   threads of the measured process
seed                  int64   seed of weights, data order and sampling
tokens_in_mean        float64 tokens of a sample before truncation
tokens_seen_mean      float64 tokens of a sample that the model saw
truncated_frac        float64 share of tokens that truncation removed, 0 to 1
truncation_side       string  side that was cut
max_length_fit        int64   longest length that ran within memory
"""

_STATUS = """
status                string  how the cell ended
status_stage          string  stage that ended it: load, warmup, latency, memory, quality
status_detail         string  last lines of what it said
exit_signal           int64   signal that ended the child
attempt               int64   1 for the first try
wall_total_ns         int64   time of the whole cell
baseline_status       string  how vanilla ended at this cell
baseline_reason       string  why vanilla has no figure
"""

_QUALITY = """
metric                string  name of the main official metric
metric_version        string  hash of the metric's code
value                 float64 main metric, in the official scale
stderr                float64 its standard error
ci_lo                 float64 lower end of its 95 % interval
ci_hi                 float64 upper end
ci_method             string  how the interval was made
metrics               json    all official figures
score_by_length       json    samples and score in each bin of input length, before truncation
n_scored              int64   samples that have a score
n_failed              int64   samples that failed
higher_is_better      bool    direction of the metric
predictions_path      string  folder of predictions
predictions_sha256    string  sha256 over ids and predictions
base_value            float64 vanilla's main metric on the same samples
base_ci_lo            float64 lower end of its 95 % interval
base_ci_hi            float64 upper end
base_score_by_length  json    vanilla's in each bin of input length
base_predictions_sha256 string sha256 over vanilla's ids and predictions
value_diff            float64 value − base_value over shared samples
value_diff_ci_lo      float64 lower end of its 95 % interval
value_diff_ci_hi      float64 upper end
chance                float64 score of the best answer that needs no reading: one for all samples
at_chance             bool    the interval of `value`, where it has one, doesn't lie above
"""

_LATENCY = """
load_ns               int64   time to build the model
first_call_ns         int64   first, cold call
warmup_calls          int64   calls before the first sample
warmup_converged      bool    the running median had settled
calls_per_sample      int64   calls grouped into one sample
lat_page_faults       int64   pages that the kernel gave or found in one call, the method's mean
base_page_faults      int64   the same of vanilla
lat_samples_ns        list<int64> method's side of each pair, one call's time
base_samples_ns       list<int64> vanilla's side of each pair
wall_samples_ns       list<int64> method's wall time where the clock is the device's
aa_first_samples_ns   list<int64> first side of vanilla/vanilla pairs
aa_second_samples_ns  list<int64> second side of them
pair_order            string  one letter a pair: which arm went first
pair_process          list<int64> process that each pair was timed in, 0 the first; null: all in one
lat_median_ns         int64   method's median
lat_p10_ns            int64   its 10th percentile
lat_p90_ns            int64   its 90th percentile
lat_mad_ns            int64   its median absolute deviation
lat_min_ns            int64   its minimum
base_median_ns        int64   vanilla's median
solo_median_ns        int64   method's median when vanilla doesn't run between its calls
ratio                 float64 median paired ratio, method / vanilla: the processes' geometric mean
ratio_ci_lo           float64 lower end of its 95 % interval
ratio_ci_hi           float64 upper end
ratio_p               float64 sign-flip p-value, or Student's over the processes where it is larger
ratio_reason          string  why there is no ratio
n_processes           int64   processes that the pairs come from; null: an older row, one
process_sd_pct        float64 standard deviation between their median ratios
process_reason        string  why one process timed all pairs: the interval is that process's own
n_pairs               int64   method/vanilla pairs
verdict               string  what the ratio means on this host
aa_noise_pct          float64 error of a ratio between equal arms, 90th percentile
aa_verdict            string  verdict on equal arms: anything but same or undecided is a warning
attend_ns             int64   time inside the method's attention
encode_ns             int64   time inside the method's walk over the layers
prefill_ns            int64   time to read the input
decode_ns_per_token   int64   time of each further token
tokens_out            int64   tokens generated
gemm_gflops           float64 matrix product speed of this host at measuring time
"""

_MEMORY = """
mem_method            string  how the peak was read: VmHWM, "VmRSS, sampled" or cuda_allocator
mem_reason            string  why there is no memory figure
rss_base_bytes        int64   resident before the forward
rss_peak_delta_bytes  int64   peak of one cold forward above that
rss_peak_warm_delta_bytes int64 peak of one warm forward above that
alloc_peak_bytes      int64   peak of torch's own allocations
weights_bytes         int64   size of the weights
state_theory_bytes    int64   memory that theory promises
gpu_alloc_delta_bytes int64   peak of allocated GPU memory above the base
gpu_reserved_bytes    int64   peak of reserved GPU memory
gpu_nvml_bytes        int64   GPU memory of the process as the driver sees it
base_rss_base_bytes   int64   vanilla's resident before the forward
base_rss_peak_delta_bytes int64 vanilla's cold peak
base_rss_peak_warm_delta_bytes int64 vanilla's warm peak
base_alloc_peak_bytes int64   vanilla's peak of torch's allocations
base_gpu_alloc_delta_bytes int64 vanilla's peak of allocated GPU memory
base_gpu_reserved_bytes int64 vanilla's peak of reserved GPU memory
base_gpu_nvml_bytes   int64   vanilla's GPU memory as the driver sees it
mem_ratio             float64 peak memory, method / vanilla
mem_agree             bool    measured and theoretical memory agree
"""

_FIDELITY = """
fid_rel_l2            float64 relative error of the output against exact attention
fid_max_abs           float64 largest absolute error
fid_cos_min           float64 cosine of the worst token
fid_kl_mean           float64 mean KL divergence of the predictions
fid_top1_agree        float64 share of equal first choices, 0 to 1
fid_recall            float64 share of a layer's heaviest keys that the method read, 0 to 1
fid_mass              float64 share of exact attention's weight on the keys that it read
fid_mass_best         float64 the same for the heaviest keys: no choice has more
fid_reason            string  why there is no fidelity
"""

_HOST = """
host_id               string  hash of what stays the same on this machine
cpu_model             string  name of the processor
cores_phys            int64   physical cores of the machine
cores_logical         int64   logical cores of the machine
affinity              string  numbers of the logical cores that this process may use
smt                   bool    cores run two threads each
governor              string  frequency governor
cgroup_cpu            float64 cores that the control group grants
cgroup_mem_bytes      int64   memory that the control group grants
mem_total_bytes       int64   memory of the machine
numa                  int64   memory nodes
libc                  string  C library
os_kernel             string  operating system's kernel
virt                  string  virtual machine or container
steal_pct             float64 processor time taken by other guests
load1                 float64 load average of the last minute, before measuring
ctx_switch_invol      int64   times that the process was made to wait
throttled             bool    the control group stopped the process for a while
noisy                 bool    the host was too busy for a fair measurement
noise_reason          string  what made it noisy
gpu_name              string  name of the GPU
gpu_driver            string  version of its driver
gpu_clock_mhz         int64   its clock
python                string  version of Python
torch                 string  version of torch
blas                  string  library of matrix products
onednn                string  version of oneDNN
packages_sha          string  hash of the installed packages and versions
"""

_ENERGY = """
energy_j              float64 energy of one call, by a meter of the whole device
energy_source         string  the meter: rapl or nvml
energy_reason         string  why there is none
"""

_TRAINING = """
weights_protocol      string  how method and weights came together
recipe                string  name of the recipe that trained the weights
recipe_params         json    its hyper-parameters
checkpoint_key        string  sha256 over all that shapes the trained weights
train_steps           int64   steps until the weights that count
train_wall_ns         int64   time that their training took
train_dev_score       float64 accuracy, or minus the loss, on the dev rows at that step
train_step_ns         int64   method's median time of a training step
base_train_step_ns    int64   vanilla's
train_samples_ns      list<int64> method's side of each pair of training steps
base_train_samples_ns list<int64> vanilla's side of each pair
train_ratio           float64 median paired ratio of a training step, method / vanilla
train_ratio_ci_lo     float64 lower end of its 95 % interval
train_ratio_ci_hi     float64 upper end
train_ratio_p         float64 sign-flip p-value
train_n_pairs         int64   method/vanilla pairs of training steps
train_aa_noise_pct    float64 error of such a ratio between equal arms, 90th percentile
train_verdict         string  what the ratio means on this host
train_peak_bytes      int64   peak of one cold training step above the loaded model
base_train_peak_bytes int64   vanilla's
train_mem_ratio       float64 peak memory of a training step, method / vanilla
train_reason          string  why there is no figure of training
"""

COLUMNS: dict[str, Column] = {
    column.name: column
    for group, text in {
        "identity": _IDENTITY,
        "shape": _SHAPE,
        "status": _STATUS,
        "quality": _QUALITY,
        "latency": _LATENCY,
        "memory": _MEMORY,
        "fidelity": _FIDELITY,
        "host": _HOST,
        "energy": _ENERGY,
        "training": _TRAINING,
    }.items()
    for column in _group(group, text)
}


def arrow_schema() -> Any:
    """The columns as a `pyarrow.Schema`."""
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "json": pa.string(),
        "list<int64>": pa.list_(pa.int64()),
    }
    return pa.schema([(column.name, types[column.type]) for column in COLUMNS.values()])
