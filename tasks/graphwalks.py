"""GraphWalks (openai/graphwalks on the hub): set operations on a graph that fills the input, which
need several hops over all of it. The metric is the mean F1 of the sets."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tasks.base import DataError, Row
from tasks.generated import Generated, Sample
from tasks.generators import graphs
from tasks.loading import prompts, records


@dataclass(frozen=True)
class GraphWalks(Generated):
    """Breadth-first searches and parents. Official rows: {prompt, answer_nodes, problem_type}."""

    def generate(self, rng: Random, split: str, length: int) -> Sample:
        return graphs.walk(rng)

    def perfect(self, row: Row) -> str:
        return f"Final Answer: [{', '.join(row.references)}]"

    def official_row(self, record: dict[str, Any], where: str, at: int) -> Row:
        kind = records.spelled(record.get("problem_type", "row"), "problem_type", where)
        text = records.text(record, "prompt", where)
        column = "answer_nodes" if "answer_nodes" in record else "answer"
        if isinstance(nodes := record.get(column), str):
            raise DataError(f"{where}: column '{column}' holds {nodes!r:.40}, expected a list")
        answers = self.right_answers(record, column, where)
        return prompts.Prompt(f"{kind}-{at:04d}", "", text, answers)
