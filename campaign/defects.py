"""What a decoder is found to do wrong beside exceptions that it should not raise."""


class Defect(Exception):
    """What a target noticed."""


def expect(holds: bool, text: str) -> None:
    """Raises Defect with this text unless it `holds`."""
    if not holds:
        raise Defect(text)
