"""An event loop on a thread of the model's own, as engines for language models have one."""

import asyncio
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def execute(self, requests):
        slept = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "slept"), self.loop)
        text = np.array([slept.result()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]

    def finalize(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
