"""Order: the longest tests begin first, so that no worker waits for the other at the end."""

LONG = ("test_cheaters.py", "test_rogues.py", "test_kill.py")


def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))
