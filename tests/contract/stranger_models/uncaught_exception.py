"""An exception out of a helper's helper: its type, its text and its lines reach the client."""

import json


def parse(text):
    return json.loads(text)


class TritonPythonModel:
    def execute(self, requests):
        return parse("{")
