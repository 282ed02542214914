# docker build -t inosgd --build-arg TORCH_INDEX=... . && docker run --rm -v "$PWD:/work" inosgd train study.toml
# TORCH_INDEX is the index of CPU builds that PyTorch's installation page names; the default one brings gigabytes of CUDA.
FROM python:3.11-slim
ARG TORCH_INDEX=
# Kernels are compiled when a model first needs them; without a compiler everything works, more slowly.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir '/src[cli,data,report,accounts,serve]' && useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["inosgd"]
