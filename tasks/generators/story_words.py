"""Words and sentence templates of tasks.generators.stories. A {slot} takes a word of SLOTS, a name,
a thing or a place."""

FIRST = (
    "Mar Tan Bel Cor Dra El Fen Gar Hal Is Jor Kel Lor Mir Nor Or Pel Quil Ros Sel Tor Ul Ver Wil "
    "Yar Zan Bran Cal Del Er Fal Gil Hes Il Jas Kor Lin Mel Nim Os"
).split()
SECOND = (
    "lo na ric da vin mo la ren sa to mi dor wen ka bel ia us eth an is ra go ley mond ta win ster "
    "fa dra no li po gan wick rus zo bert cy qua ham"
).split()
ADJECTIVES = (
    "silver copper brass iron golden wooden painted broken heavy little green blue red white black "
    "yellow ancient borrowed carved cracked dusty foreign polished stolen"
).split()
NOUNS = (
    "lantern compass key clock mirror violin kettle ladder basket trunk anchor saddle bell drum "
    "globe candle statue hammer shovel barrel blanket bottle bowl box brush button cage carpet "
    "chain chair chest coat comb crown cup dagger desk doll flag flute fork glove goblet harp hat "
    "helmet jar jug kite knife locket loom map medal necklace needle oar pipe plate purse ring "
    "rope scroll shield"
).split()
PLACE_ADJECTIVES = "old new upper lower north south east west stone quiet".split()
PLACE_NOUNS = (
    "mill harbour chapel market tower bridge library stable bakery orchard cellar attic barn "
    "school forge inn quarry lighthouse cottage ferry garden theatre station courtyard"
).split()
PLACE_NAMES = (
    "palace monastery windmill vineyard brewery hospital prison museum bathhouse granary pharmacy "
    "boathouse cemetery fountain workshop greenhouse townhall treasury laundry dovecote tannery "
    "sawmill pier barracks"
).split()
PLACES = [*PLACE_NAMES, *(f"{a} {n}" for a in PLACE_ADJECTIVES for n in PLACE_NOUNS)]

SLOTS = {
    "sky": "sky wind rain moon sun fog snow storm mist frost".split(),
    "did": "came went turned faded returned lingered passed waited settled vanished".split(),
    "how": "slowly again early late softly twice gently quietly soon suddenly".split(),
    "land": "valley river forest road hills fields village meadow marsh lake".split(),
    "folk": "farmers children sailors travellers neighbours merchants weavers fishermen".split(),
    "act": "sang talked laughed argued worked slept danced rested prayed hurried".split(),
    "beast": "dogs horses geese crows cats sheep goats owls swallows bees".split(),
    "food": "bread soup cheese apples tea porridge fish honey plums beans".split(),
    "day": "morning evening night afternoon winter summer spring autumn".split(),
    "fair": "long cold warm bright grey pale strange dim busy narrow".split(),
}
PROSE = (
    "The {sky} {did} {how}.",
    "It was a {fair} {day}, and the {folk} {act}.",
    "All {day} the {folk} {act} by the {land}.",
    "Some said that the {day} would be {fair}, but nobody knew.",
    "The {beast} {act} {how} while the {sky} {did} over the {land}.",
    "They had {food} for everyone, and there were songs about the {land}.",
    "Every {day} the {folk} ate {food} with {food} and {act} until the {sky} {did}.",
    "The {land} was {fair}, as it had always been in the {day}.",
    "In those days the {folk} feared the {sky} more than the {beast}.",
    "Beyond the {land} the {fair} road {did}, and the {folk} {act} {how}.",
    "When the {day} {did}, the {beast} were {fair} and the {folk} had no {food}.",
    "Far away a {fair} {sky} {did} over the {fair} {land}.",
    "They had {food}, a little {food} and a {fair} song for the {day}.",
    "{name} {act} {how} with the {folk} and thought about the {land}.",
    "{name} bought {food} from the {folk} and ate it by the {land}.",
    "{name} and {name} {act} until the {sky} {did}.",
)
DISTRACTORS = (
    "{name} dreamed about the {thing} all {day}.",
    "Nobody spoke of the {thing} that {day}.",
    "{name} walked past the {place} and {act} {how}.",
    "The {folk} {act} near the {place}.",
    "{name} asked {name} about the {thing}, but {name} said nothing.",
    "The {place} was {fair} that {day}.",
)
SHORT = ("The {sky} {did}.", "Time {did}.", "The {folk} {act}.")
TIMES = ("", "", "Later ", "Then ", "One {day} ", "After that ")
STOOD = ("The {thing} {stood} at the {place}.", "{name} found the {thing} at the {place}.")
MOVED = ("{time}{name} {carried} the {thing} to the {place}.",)
GAVE = ("{time}{name} {got} the {thing} from {giver}.",)
SLOTS["stood"] = "stood lay rested waited".split()
SLOTS["carried"] = "carried brought moved dragged".split()
SLOTS["got"] = "got received accepted borrowed".split()
QUESTIONS = {
    "end": "Where is the {} at the end?",
    "first": "Where was the {} at first?",
    "giver": "Who gave the {} to {}?",
    "gift": "What did {} give to {}?",
    "both": "Where are the {} and the {} at the end?",
}
WEIGHTS = {"end": 8, "first": 3, "giver": 4, "gift": 3, "both": 2}
OPENING = "This is a story about {} and {}, and about many things."
CLOSING = "And so the story came to its end, and the {folk} {act} {how}."
CLAIM = "The {} is at the {} at the end."
LABELS = ("Entailment", "Contradiction", "Not mentioned")
EXTRA = "the a and is was in to of ; : 1 2 3 4 5 6 7 8".split()
