"""Creates and changes custom metrics on request; returns the values that it reads."""

import numpy as np
import triton_python_backend_utils as pb_utils

NUMBERS = [
    *(0.0, -0.0, 2, -3, 0.1, 0.1 + 0.2, 1 / 3, 100.6, 1234567.5, 123456789),
    *(1e15, 1e16, 1e17, 2**53, 123456789012345680, 1e300, 1e-4, 1e-5, 1.5e-10, 5e-324),
    *(float("nan"), float("inf"), float("-inf")),
]


class TritonPythonModel:
    def initialize(self, args):
        make = pb_utils.MetricFamily
        self.model = args["model_name"]
        self.families = {
            "hist": make("custom_seconds", "A histogram, made first", make.HISTOGRAM),
            "gauge": make("custom_gauge", "", make.GAUGE),
            "counter": make("custom_counter", 'Text of "any" \\ kind, é', make.COUNTER),
            "shared": make("custom_shared", "Made by two models", make.COUNTER),
            "empty": make("custom_empty", "Has no series", make.COUNTER),
            "again": make("custom_again", "The first text", make.GAUGE),
            "later": make("custom_later", "Stands behind it", make.GAUGE),
        }
        self.loads = self.families["counter"].Metric({"model": self.model, "what": "loads"})
        self.loads.increment(1)
        self.calls = self.families["counter"].Metric({"model": self.model, "what": "calls"})
        self.shared = self.families["shared"].Metric({"of": "all"})
        self.later = self.families["later"].Metric()

    def execute(self, requests):
        self.calls.increment(len(requests))
        return [self.answer(request) for request in requests]

    def answer(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "what").as_numpy()[0].decode()
        told = getattr(self, what.replace(" ", "_"))()
        text = np.array([repr(told).encode()], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("told", text)])

    def nothing(self):
        """Change only the metrics that every call changes."""

    def numbers(self):
        """Set a gauge to several numbers."""
        for index, number in enumerate(NUMBERS):
            self.families["gauge"].Metric({"number": str(index)}).set(number)
        return self.families["gauge"].Metric({"number": "5"}).value()

    def labels(self):
        """Create metrics with labels in several orders, with unusual texts, and without labels."""
        counter = self.families["counter"]
        counter.Metric({"b": "2", "a": 'x\\y"z\nw é', "_x": "", "C": "{}=,"}).increment(2)
        counter.Metric().increment(0.5)
        counter.Metric({}).increment(0.25)
        return counter.Metric(labels=None, buckets=None).value()

    def histograms(self):
        """Observe values below, at, between and above the bounds."""
        hist = self.families["hist"]
        metric = hist.Metric({"z": "1", "a": "2"}, [0.1, 1, 2.5, 1e6, 1e16])
        for value in (0.1, 0.05, 1, 1.0000001, -1, 7, 1e20, True):
            metric.observe(value)
        hist.Metric(buckets=[]).observe(3)
        hist.Metric({"of": "zero"}, [-1, 0]).observe(0)
        odd = hist.Metric({"of": "odd"}, [1.5])
        odd.observe(float("nan"))
        odd.observe(float("-inf"))
        odd.observe(2)
        hist.Metric({"of": "zero"}, [5]).observe(-0.5)

    def share(self):
        """Change a metric that another model changes, too."""
        self.shared.increment(3)
        return self.shared.value()

    def drop_a_metric(self):
        """Delete a metric and create it again with its old value."""
        metric = self.families["gauge"].Metric({"dropped": "yes"})
        metric.set(4)
        del metric
        return self.families["gauge"].Metric({"dropped": "yes"}).value()

    def drop_a_family(self):
        """Delete a family, and use its remaining metrics."""
        make = pb_utils.MetricFamily
        dropped = self.families["again"]
        metric = dropped.Metric({"seen": "no"})
        metric.set(4)
        del dropped, self.families["again"]
        try:
            metric.set(5)
        except pb_utils.TritonModelException as error:
            said = str(error)
        again = self.families["again"] = make("custom_again", "Another text", make.GAUGE)
        again.Metric({"seen": "yes"}).increment(-2)
        return said, again.Metric({"seen": "yes"}).value()

    def drop_all_of_a_family(self):
        """Delete a family with all its metrics."""
        family = pb_utils.MetricFamily("custom_gone", "d", pb_utils.MetricFamily.COUNTER)
        family.Metric().increment(1)

    def join_the_server(self):
        """Add a series to one of the server's families."""
        make = pb_utils.MetricFamily
        family = self.families["built in"] = make("nv_inference_count", "ignored", make.COUNTER)
        family.Metric({"mine": "yes"}).increment(7)
