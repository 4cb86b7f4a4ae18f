"""Code that a user of each peer would write, for `benchmarks.peers`; {names} are replaced."""

from __future__ import annotations

ENCODE = """
import json, sys, time
import numpy as np
FOLDER = {folder!r}
class Encoder:
    def __init__(self):
        import onnxruntime, tokenizers
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = FOLDER + "/onnx/model.onnx"
        self.session = onnxruntime.InferenceSession(path, options)
        self.tokenizer = tokenizers.Tokenizer.from_file(FOLDER + "/tokenizer.json")
        self.tokenizer.enable_padding()
        self.head = np.load(FOLDER + "/head.npz")
    def __call__(self, texts):
        found = self.tokenizer.encode_batch(list(texts))
        ids, mask = (np.array([getattr(one, name) for one in found], np.int64)
                     for name in ("ids", "attention_mask"))
        known = dict(input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
        feed = {{one.name: known[one.name] for one in self.session.get_inputs()}}
        vectors = (self.session.run(None, feed)[0] * mask[..., None]).sum(1)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32) @ self.head["weight"] + self.head["bias"]
"""
TRITON = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.encode = Encoder()
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(r, "text").as_numpy() for r in requests]
        logits = self.encode([text.decode() for row in rows for text in row.ravel()])
        parts = np.split(logits, np.cumsum([len(row) for row in rows])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("logits", p)]) for p in parts]
"""
TRITON_CONFIG = """
backend: "python" max_batch_size: 64 dynamic_batching { }
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 6 ] } ]
"""
BENTOML = """
import bentoml
@bentoml.service(workers=1, logging={{"access": {{"enabled": False}}}})
class Service:
    def __init__(self):
        self.encode = Encoder()
    @bentoml.api(batchable=True, max_batch_size=64)
    def embed(self, texts: list[str]) -> np.ndarray:
        return self.encode(texts)
"""
LITSERVE = """
import litserve
class Api(litserve.LitAPI):
    def setup(self, device):
        self.encode = Encoder()
    def decode_request(self, request):
        return request["text"]
    def batch(self, inputs):
        return inputs
    def predict(self, texts):
        return self.encode(texts)
    def unbatch(self, logits):
        return list(logits)
    def encode_response(self, logits):
        return {{"logits": logits.tolist()}}
if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.002)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port={port}, generate_client_file=False, num_api_servers=1, log_level="warning")
"""
LIBRARY = """
def main(encode):
    head = np.load(FOLDER + "/head.npz")
    texts = json.load(open(FOLDER + "/texts.json"))
    for line in sys.stdin:
        given = json.loads(line)
        if "texts" in given:
            found = np.array(encode(given["texts"])) @ head["weight"] + head["bias"]
            print(json.dumps(found.tolist()), flush=True)
            continue
        count, times, at = given["count"], [], 0
        end, cpu = time.perf_counter() + given["seconds"], time.process_time()
        while (start := time.perf_counter()) < end:
            batch = [texts[(at + k) % len(texts)] for k in range(count)]
            encode(batch)
            at += count
            times += [(time.perf_counter() - start) * 1e6] * count
        print(json.dumps([times, (time.process_time() - cpu) * 1e6]), flush=True)
"""
FASTEMBED = """
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model(
    model="local", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local"),
    dim=384, model_file="onnx/model.onnx",
)
model = TextEmbedding("local", specific_model_path=FOLDER)
main(lambda batch: list(model.embed(batch, batch_size=256)))
"""
SENTENCES = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(
    FOLDER, backend="onnx", device="cpu",
    model_kwargs=dict(file_name={file!r}, provider="CPUExecutionProvider"),
)
main(lambda batch: model.encode(batch, batch_size=256, show_progress_bar=False))
"""
EXPORT = """
import sys
from sentence_transformers import SentenceTransformer
from sentence_transformers import export_dynamic_quantized_onnx_model as quantize
model = SentenceTransformer(sys.argv[1], backend="onnx", model_kwargs=dict(export=True))
model.save_pretrained(sys.argv[1])
quantize(model, "avx512_vnni", sys.argv[1])
"""
ENVIRONMENTS = {
    "sentence-transformers": ["torch==2.13.0", "sentence-transformers[onnx]==5.7.0"],
    "infinity": ["torch==2.13.0", "infinity-emb[server,optimum,torch]==0.0.78"],
    "fastembed": ["fastembed==0.9.1"],
    "bentoml": ["bentoml==1.4.40", "onnxruntime", "tokenizers"],
    "litserve": ["litserve==0.2.19", "onnxruntime", "tokenizers"],
}
"""Packages by environment. torch is the CPU build on this machine's disk."""
