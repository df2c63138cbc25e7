"""The commands of `bench`, grouped by what one wants to do."""

from __future__ import annotations

COMMAND_GROUPS = {
    "run": {
        "run": ("bench.cli.main:run", "run a cell or a sweep: bench run --help"),
        "plan": ("bench.cli.sweep_commands:plan", "what a sweep would do, how long, what is done"),
        "status": ("bench.cli.sweep_commands:status", "how far sweeps are: queue and store"),
        "train": ("bench.cli.train_command:train", "train a method's weights, or find them"),
        "fetch": ("bench.cli.inspect_commands:fetch", "download a task's data or a model"),
        "lm_eval": ("bench.cli.lm_eval_command:lm_eval", "lm-evaluation-harness with any method"),
    },
    "look": {
        "ls": ("bench.cli.list_command:ls", "list methods, tasks, models, metrics, …"),
        "results": ("bench.cli.row_commands:results", "list rows; results merge | check | migrate"),
        "explain": ("bench.cli.compare_commands:explain", "what differs between two rows"),
        "doctor": ("bench.cli.doctor_command:doctor", "is this machine ready, and what to do?"),
        "host": ("bench.cli.inspect_commands:host", "this machine and its noise"),
        "recall": ("bench.cli.study_commands:recall", "recall of k-NN searches against their time"),
        "spectrum": ("bench.cli.study_commands:spectrum", "spectrum of a model's hidden states"),
    },
    "compare": {
        "compare": ("bench.cli.compare_commands:compare", "is B better than A, and how sure?"),
        "verify": ("bench.cli.compare_commands:verify", "measure a row again on this machine"),
        "score": ("bench.cli.inspect_commands:score", "score anyone's predictions"),
        "rescore": ("bench.cli.row_commands:rescore", "score stored predictions by today's metric"),
    },
    "publish": {
        "report": ("reports.papers.command:report", "the papers' tables beside what was measured"),
        "plot": ("reports.figures.command:plot", "draw figures of stored rows"),
        "leaderboard": ("reports.leaderboard.command:leaderboard", "rows as one HTML page, ranked"),
        "export": ("bench.cli.export_command:export", "a submission file; rows for other tools"),
        "submit-check": ("bench.cli.compare_commands:submit_check", "check rows to contribute"),
    },
    "extend": {
        "completion": ("bench.cli.completion:completion", "complete words in bash, zsh and fish"),
        "new": ("bench.cli.inspect_commands:new", "write the files of a new method or task"),
        "check": ("bench.cli.inspect_commands:check", "does a method or a task keep its contract?"),
    },
}  # fmt: skip
"""Group → command → the function behind it, and what it is for."""

COMMANDS = {
    name: target for group in COMMAND_GROUPS.values() for name, (target, _) in group.items()
}


def overview() -> str:
    """The help of `bench`."""
    lines = [
        "usage: bench COMMAND …        bench COMMAND --help says more",
        "",
        "Is this long-context method faster, smaller and as good?",
    ]
    for group, commands in COMMAND_GROUPS.items():
        lines += ["", group, *(f"  {name:<13} {about}" for name, (_, about) in commands.items())]
    return "\n".join(lines)
