"""`bench lm_eval …`: the command line of lm-evaluation-harness, which then knows the model
`longctx-bench` (bench.lm_eval_model)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from bench.errors import RequestError
from bench.terminal.arguments import parser_for
from tasks.loading import lm_eval_package

MODEL, TARGET = lm_eval_package.MODEL, "bench.lm_eval_model:LongContextLM"


def lm_eval(arguments: Sequence[str]) -> int:
    """Raises RequestError where the package isn't installed, and what the model raises."""
    parser = parser_for(
        "lm_eval",
        "lm-evaluation-harness: the arguments of its command lm_eval, and one more model,\n"
        f"{MODEL}: any method in any model that answers with text. Offline unless\n"
        "HF_HUB_OFFLINE=0 is set: bench fetch lm_eval:TASK gets a task's data",
        f"bench lm_eval run --model {MODEL} \\\n"
        "  --model_args pretrained=CHECKPOINT,method=snapkv,budget=0.25 --tasks TASK",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of lm_eval")
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.parse_args(["--help"])
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
