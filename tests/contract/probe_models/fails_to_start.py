"""Never becomes ready."""


class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("this model cannot start")

    def execute(self, requests):
        return []
