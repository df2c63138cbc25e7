"""`bench lm_eval …`: the command line of lm-evaluation-harness, which then knows the model
`longctx-bench` (bench.lm_eval_model)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bench.errors import RequestError
from tasks.loading import lm_eval_package

MODEL, TARGET = lm_eval_package.MODEL, "bench.lm_eval_model:LongContextLM"
HELP = f"""\
usage: bench lm_eval ARGUMENT …        the arguments of the command lm_eval

Runs lm-evaluation-harness with the model {MODEL}: any method in any model that answers with
text. Offline, unless HF_HUB_OFFLINE=0 says otherwise: `bench fetch lm_eval:TASK` gets data.

bench lm_eval run --model {MODEL} \\
    --model_args pretrained=CHECKPOINT,method=snapkv,budget=0.25 --tasks TASK
"""


def lm_eval(arguments: Sequence[str]) -> int:
    """Raises RequestError where the package isn't installed, and what the model raises."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
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
