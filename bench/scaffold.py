"""`bench new method NAME`: a method that runs and passes `bench check`, to change from there."""

from __future__ import annotations

import keyword
from pathlib import Path

from bench import plugins
from bench.errors import RequestError

CODE = '''\
"""{title}: say what it does in a line (authors, arXiv number, section)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from methods.base import Call, Method, Shape
from methods.vanilla import exact_attention


@dataclass(frozen=True)
class {title}(Method):
    """Fields are the method's hyper-parameters; conf/method/{name}.yaml sets them."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        # Begin here: one attention layer, [B, H, n, d]; `call` has scale, padding, causal, bias.
        return exact_attention(query, key, value, call)

    def unsupported(self, shape: Shape) -> str | None:
        return None  # or why not, in words: "{name} isn't causal" if shape.causal else None

    def exact(self) -> Method | None:
        return self  # the parameters at which it equals vanilla; None: there are none
'''
CONF = """\
# {title}: what `bench ls methods` says of it.
name: {name}
target: methods.{name}:{title}
"""


def new_method(name: str, root: Path = plugins.ROOT) -> dict[Path, str]:
    """The files of a new method and their text, 40 lines at most; nothing is written.

    Raises RequestError for a name that is no Python module name, or that is taken.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise RequestError(
            f"can't name a method '{name}': a name is lower-case letters, digits and _, such as "
            "sliding_window"
        )
    files = {
        root / "methods" / f"{name}.py": CODE,
        root / "conf" / "method" / f"{name}.yaml": CONF,
    }
    taken = [str(path.relative_to(root)) for path in files if path.exists()]
    if taken or name in plugins.available("method"):
        raise RequestError(f"there is a method '{name}' already: {', '.join(taken) or 'a plugin'}")
    title = "".join(part.capitalize() for part in name.split("_"))
    return {path: text.format(name=name, title=title) for path, text in files.items()}
