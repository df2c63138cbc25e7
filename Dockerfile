# longctx-bench on a CPU, as a user without rights:
#   docker build -t longctx-bench .
#   docker run --rm -v "$PWD/results:/data/results" longctx-bench run method=vcc length=1024 n=4
FROM python:3.12-slim-bookworm AS build
COPY . /src
WORKDIR /src
RUN pip install --no-cache-dir "hatchling>=1.25" \
    && python -m hatchling build --target wheel --directory /dist
WORKDIR /src/tools/embedded
RUN python -m hatchling build --target wheel --directory /dist

FROM python:3.12-slim-bookworm
# The compiler builds the native kernels of some methods on first use.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# torch's CPU build: PyPI has the CUDA build, of 5 GB with its libraries.
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    "torch>=2.6,<2.14" /dist/*.whl
RUN useradd --create-home --uid 1000 bench && install -d -o bench /data
USER 1000
WORKDIR /data
ENTRYPOINT ["bench"]
CMD ["--help"]
