"""The failure of a check that is not an exception of the code under test."""


class Defect(Exception):
    """A check failed; the text says which."""


def expect(holds: bool, text: str) -> None:
    """Raise Defect with this text unless `holds`."""
    if not holds:
        raise Defect(text)
