"""Directed graphs and an operation on them, as in GraphWalks: the nodes at a depth, or parents.

The part that determines the answer is drawn first. Filler edges join other nodes with each other
and lead into that part, never out of it, so that the answer is the same at every length.
"""

from __future__ import annotations

from random import Random

from tasks.generated import Sample
from tasks.generators import filler

INTRO = (
    "You will be given a graph as a list of directed edges. All nodes are at least degree 1. You "
    "will also get a description of an operation to perform on the graph. Your job is to execute "
    "the operation on the graph and return the set of nodes that the operation results in. If "
    "asked for a breadth-first search (BFS), only return the nodes that are reachable at that "
    "depth, do not return the starting node. If asked for the parents of a node, only return the "
    "nodes that have an edge leading to the given node, do not return the given node itself.\n\n"
)
EXAMPLE = (
    "Here is an example:\nThe graph has the following edges:\n"
    "uvwx -> alke\nabcd -> uvwx\nabcd -> efgh\nefgh -> uvwx\n\n"
    "Operation: Perform a BFS from node abcd with depth 1.\nFinal Answer: [uvwx, efgh]\n"
    "Operation: Perform a BFS from node alke with depth 1.\nFinal Answer: []\n"
    "Operation: Find the parents of node uvwx.\nFinal Answer: [abcd, efgh]\n\n"
    "Here is the graph to operate on:\nThe graph has the following edges:\n"
)
CLOSING = (
    "\n\nYou should immediately return the set of nodes, in the last line of your answer, as "
    "'Final Answer: [node, node]'."
)
MOST_ANSWERS = 30
FORWARD = 0.3
"""The share of filler edges that lead into the part of the answer."""


def walk(rng: Random) -> Sample:
    """A breadth-first search to depth 1 … 4, or the parents of a node, with 1 … 30 answers."""
    nodes = filler.different(lambda: f"{rng.getrandbits(40):010x}", set())
    if rng.random() < 0.5:
        child = next(nodes)
        answers = [next(nodes) for _ in range(rng.randint(1, 8))]
        edges, closed = [(parent, child) for parent in answers], {child}
        asked = f"Find the parents of node {child}."
    else:
        depth = rng.randint(1, 4)
        start = next(nodes)
        layers = [[start]]
        edges, closed = [], set()
        for _ in range(depth + 1):
            width = rng.randint(1, 3)
            below = [next(nodes) for _ in range(min(MOST_ANSWERS, width * len(layers[-1])))]
            edges += [(rng.choice(layers[-1]), node) for node in below]
            # An edge back makes a cycle, which a walk must not follow twice.
            edges.append((rng.choice(below), rng.choice(rng.choice(layers))))
            layers.append(below)
        answers = layers[depth]
        asked = f"Perform a BFS from node {start} with depth {depth}."
    inside = [node for edge in edges for node in edge if node not in closed]
    outside = filler.Endless(nodes.__next__)
    state = rng.random()

    def document(units: int) -> str:
        # One more unit adds an edge and changes none, so that the number of tokens only grows.
        others, draw = outside.first(units // 2 + 2), Random(state)
        more = []
        for i in range(units):
            a, b = (others[draw.randrange(i // 2 + 2)] for _ in "ab")
            more.append((a, draw.choice(inside) if draw.random() < FORWARD else b))
        lines = [f"{a} -> {b}" for a, b in dict.fromkeys([*edges, *more]) if a != b]
        draw.shuffle(lines)
        return INTRO + EXAMPLE + "\n".join(lines)

    return Sample(document, f"\n\nOperation: {asked}", tuple(answers), CLOSING)
