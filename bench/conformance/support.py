"""docs/support.md: which method runs in which family, and why not. `python -m
bench.conformance.support` writes it; every reason is the method's own."""

from __future__ import annotations

from dataclasses import replace

from bench import plugins
from bench.conformance import families
from bench.conformance.subject import vanilla

PAGE = plugins.ROOT / "docs" / "support.md"
LENGTH = 4096
HEAD = """\
# What runs where

Every method of this project in every family of models, for a batch of one and {length:,} tokens, as
the method itself says before anything runs. `bench check method=NAME` proves the "yes" on tiny
models. This page is written by `python -m bench.conformance.support`.
"""


def page() -> str:
    """The page's text, from the project's own YAMLs; plugins stay out of it."""
    built = {
        path.stem: plugins.build(plugins.conf("method", path.stem))
        for path in sorted((plugins.ROOT / "conf" / "method").glob("*.yaml"))
    }
    own = {
        name: family
        for name, family in families().items()
        if family.__module__.startswith("bench.models.")
    }
    shapes = {name: family.tiny(vanilla()).shape(LENGTH, 1) for name, family in own.items()}
    reasons: list[str] = []
    parts = [HEAD.format(length=LENGTH)]
    for title, training in (("Inference", False), ("Training", True)):
        lines = [f"| {title} | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
        for name, method in built.items():
            told = [
                _cell(method.unsupported(replace(shape, training=training)), reasons)
                for shape in shapes.values()
            ]
            lines.append(f"| {name} | " + " | ".join(told) + " |")
        parts.append("\n".join(lines) + "\n")
    parts.append("\n".join(f"{i}. {reason}" for i, reason in enumerate(reasons, start=1)) + "\n")
    return "\n".join(parts)


def _cell(reason: str | None, reasons: list[str]) -> str:
    if reason is None:
        return "yes"
    if reason not in reasons:
        reasons.append(reason)
    return f"no ({reasons.index(reason) + 1})"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    print(PAGE.relative_to(plugins.ROOT))
