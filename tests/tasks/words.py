"""A tokenizer for tests: an id for each word or each character, with decoding."""


class Words:
    """`cut` splits a text; </s> ends it, and with `start` <s> begins it."""

    eos_token_id: int | None = 1

    def __init__(self, cut=str.split, start: bool = False):
        self.cut, self.start, self.known = cut, start, ["<pad>", "</s>", "<s>"]

    def __call__(self, text, *, add_special_tokens=True):
        ids = []
        for word in self.cut(text):
            if word not in self.known:
                self.known.append(word)
            ids.append(self.known.index(word))
        if add_special_tokens:
            ids = [2, *ids] if self.start else [*ids, 1]
        return {"input_ids": ids}

    def spell(self, ids, between=" "):
        return between.join(self.known[i] for i in ids)

    def vip(self, encoded, between=" "):
        """The VIP tokens of an encoding as text."""
        return self.spell(
            [i for i, vip in zip(encoded.ids, encoded.vip, strict=True) if vip], between
        )
