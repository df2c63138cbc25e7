"""The first ten kinds of bAbI (Weston et al., 2015, arXiv:1502.05698) from a small simulated world:
people who walk about, take, drop and hand over things. Facts are in order, and the answer follows
from them alone. No question asks how many things someone without things carries: the official
metric doesn't score the answer "none".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
GIVERS = ("Mary", "Fred", "Jeff", "Bill")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
NUMBERS = ("none", "one", "two", "three")
DIRECTIONS = {"north": "south", "south": "north", "east": "west", "west": "east"}
WENT = ("went to", "moved to", "travelled to", "journeyed to")
TOOK = ("got", "grabbed", "took", "picked up")
LEFT = ("dropped", "left", "put down", "discarded")
NOT_IN = ("is not in", "is no longer in")
GAVE = ("gave", "handed", "passed")

LABELS = {
    **dict.fromkeys(("qa1", "qa2", "qa3", "qa4"), PLACES),
    "qa5": (*GIVERS, *THINGS),
    "qa6": ("no", "yes"),
    "qa7": NUMBERS,
    "qa8": (*THINGS, "nothing"),
    "qa9": ("no", "yes"),
    "qa10": ("maybe", "no", "yes"),
}
"""The answers that each kind has."""


@dataclass
class World:
    """Who is where, who holds what, and where each thing has been."""

    rng: Random
    facts: list[str] = field(default_factory=list)
    place: dict[str, str] = field(default_factory=dict)
    holder: dict[str, str] = field(default_factory=dict)
    been: dict[str, list[str]] = field(default_factory=dict)

    def go(self, person: str) -> None:
        place = self.rng.choice([one for one in PLACES if one != self.place.get(person)])
        self.place[person] = place
        self.facts.append(f"{person} {self.rng.choice(WENT)} the {place}.")
        for thing, holder in self.holder.items():
            if holder == person:
                self._at(thing, place)

    def take(self, person: str, thing: str) -> None:
        self.holder[thing] = person
        self.facts.append(f"{person} {self.rng.choice(TOOK)} the {thing} there.")
        self._at(thing, self.place[person])

    def leave(self, person: str, thing: str) -> None:
        del self.holder[thing]
        self.facts.append(f"{person} {self.rng.choice(LEFT)} the {thing}.")

    def held(self, person: str) -> list[str]:
        return [thing for thing in THINGS if self.holder.get(thing) == person]

    def act(self) -> None:
        """Someone goes somewhere, takes a free thing that is nowhere else, or leaves one."""
        person = self.rng.choice(PEOPLE)
        free = [
            thing for thing in THINGS
            if thing not in self.holder
            and self.been.get(thing, [self.place.get(person)])[-1] == self.place.get(person)
        ]  # fmt: skip
        if person not in self.place or self.rng.random() < 0.5:
            self.go(person)
        elif free and self.rng.random() < 0.7:
            self.take(person, self.rng.choice(free))
        elif self.held(person):
            self.leave(person, self.rng.choice(self.held(person)))
        else:
            self.go(person)

    def _at(self, thing: str, place: str) -> None:
        places = self.been.setdefault(thing, [])
        if not places or places[-1] != place:
            places.append(place)


Sample = tuple[list[str], str, str]
"""Facts, a question and its answer."""


def sample(kind: str, rng: Random) -> Sample:
    """A sample of a kind, one of LABELS."""
    makers = {"qa4": _directions, "qa5": _gifts, "qa9": _negated, "qa10": _indefinite}
    return makers[kind](rng) if kind in makers else _walked(kind, rng)


def _walked(kind: str, rng: Random) -> Sample:
    """People and things that move: qa1–3, 6–8."""
    world = World(rng)
    steps = rng.randint(6, 14)
    while len(world.facts) < steps or not (asked := _ask(kind, world)):
        world.act()
    return (world.facts, *asked)


def _ask(kind: str, world: World) -> tuple[str, str] | None:
    """A question on the current state of the world, and its answer; None if no question is possible
    yet."""
    rng, placed = world.rng, sorted(world.place)
    if kind in ("qa1", "qa6"):
        person = rng.choice(placed)
        if kind == "qa1":
            return f"Where is {person}?", world.place[person]
        return _is_in(rng, person, world.place[person])
    if kind in ("qa7", "qa8"):
        carriers = sorted(set(world.holder.values()))
        if kind == "qa7" and not carriers:
            return None
        person = rng.choice(
            carriers if kind == "qa7" or (carriers and rng.random() < 0.7) else placed
        )
        held = world.held(person)
        if kind == "qa7":
            return f"How many objects is {person} carrying?", NUMBERS[len(held)]
        return f"What is {person} carrying?", ",".join(held) or "nothing"
    moved = sorted(t for t, places in world.been.items() if len(places) > (kind == "qa3"))
    if not moved:
        return None
    thing = rng.choice(moved)
    if kind == "qa2":
        return f"Where is the {thing}?", world.been[thing][-1]
    places = world.been[thing]
    last = max(at for at, place in enumerate(places) if place == places[-1])
    return f"Where was the {thing} before the {places[last]}?", places[last - 1]


def _is_in(rng: Random, person: str, place: str) -> tuple[str, str]:
    asked = place if rng.random() < 0.5 else rng.choice([one for one in PLACES if one != place])
    return f"Is {person} in the {asked}?", "yes" if asked == place else "no"


def _directions(rng: Random) -> Sample:
    first, middle, last = rng.sample(PLACES, 3)
    way = rng.choice(list(DIRECTIONS))
    facts = [f"The {first} is {way} of the {middle}.", f"The {middle} is {way} of the {last}."]
    rng.shuffle(facts)
    if rng.random() < 0.5:
        return facts, f"What is {way} of the {middle}?", first
    return facts, f"What is the {middle} {way} of?", last


def _gifts(rng: Random) -> Sample:
    facts, holder = [], {thing: rng.choice(GIVERS) for thing in THINGS}
    for thing, person in holder.items():
        facts.append(f"{person} {rng.choice(TOOK)} the {thing} there.")
    answers: dict[str, set[str]] = {}
    for _ in range(rng.randint(2, 5)):
        thing = rng.choice(THINGS)
        giver = holder[thing]
        holder[thing] = receiver = rng.choice([one for one in GIVERS if one != giver])
        facts.append(f"{giver} {rng.choice(GAVE)} the {thing} to {receiver}.")
        answers.setdefault(f"Who gave the {thing} to {receiver}?", set()).add(giver)
        answers.setdefault(f"Who did {giver} give the {thing} to?", set()).add(receiver)
        answers.setdefault(f"What did {giver} give to {receiver}?", set()).add(thing)
    question = rng.choice([asked for asked, given in answers.items() if len(given) == 1])
    return facts, question, answers[question].pop()


def _negated(rng: Random) -> Sample:
    facts, where = [], dict[str, tuple[str, bool]]()
    for _ in range(rng.randint(4, 10)):
        person, place, there = rng.choice(PEOPLE), rng.choice(PLACES), rng.random() < 0.6
        where[person] = place, there
        said = rng.choice(WENT if there else NOT_IN)
        facts.append(f"{person} {said} the {place}.")
    person = rng.choice(sorted(where))
    place, there = where[person]
    if not there:
        return facts, f"Is {person} in the {place}?", "no"
    return (facts, *_is_in(rng, person, place))


def _indefinite(rng: Random) -> Sample:
    facts, where = [], dict[str, tuple[str, ...]]()
    for _ in range(rng.randint(4, 10)):
        person, places = rng.choice(PEOPLE), tuple(rng.sample(PLACES, rng.choice((1, 2))))
        where[person] = places
        said = "is in the" if len(places) == 1 else "is either in the"
        facts.append(f"{person} {said} {' or the '.join(places)}.")
    person = rng.choice(sorted(where))
    places = where[person]
    asked = rng.choice(places) if rng.random() < 0.6 else rng.choice(PLACES)
    answer = "no" if asked not in places else "yes" if len(places) == 1 else "maybe"
    return facts, f"Is {person} in the {asked}?", answer
