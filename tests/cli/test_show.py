"""bench show: a prompt's two ends, what was cut, references; bench cite: papers and sources."""


def test_what_a_cell_shows_its_model_and_what_is_to_be_cited(transcript, command):
    """A decoder's prompt and what was cut of it, an encoder's input, papers as text and BibTeX."""
    transcript("show")
    words = ("show", "task=quality", "model=embedded-llama", "length=800", "row=1")
    short, full = (command(*words, *more)[1] for more in ([], ["--full"]))
    assert "characters …]" in short and "characters …]" not in full
    assert full.startswith(short[:300]) and full.endswith(short[-300:]) and len(full) > len(short)
