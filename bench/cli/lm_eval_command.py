"""`bench lm_eval …`: the command line of lm-evaluation-harness, which then knows the model
`longctx-bench` (bench.adapters.lm_eval_model)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from bench.errors import RequestError
from bench.terminal.options import command
from tasks.loading import lm_eval_package

MODEL, TARGET = lm_eval_package.MODEL, "bench.adapters.lm_eval_model:LongContextLM"


@command(
    "lm-evaluation-harness: the arguments of its command lm_eval, and one more model, "
    f"{MODEL}: any method in any model that answers with text. Offline unless "
    "HF_HUB_OFFLINE=0 is set: bench fetch lm_eval:TASK gets a task's data.",
    f"bench lm_eval run --model {MODEL} \\\n"
    "  --model_args pretrained=CHECKPOINT,method=snapkv,budget=0.25 --tasks TASK",
    ignore_unknown_options=True,
    allow_interspersed_args=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def lm_eval(context: click.Context, arguments: Sequence[str]) -> int:
    """Raises RequestError where the package isn't installed, and what the model raises."""
    if not arguments:
        click.echo(context.get_help())
        return 0
    if missing := lm_eval_package.missing():
        raise RequestError(missing)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", os.environ["HF_HUB_OFFLINE"])
    import lm_eval.models  # noqa: F401  (its own models, before another is registered)
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=TARGET)
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()
    return 0
