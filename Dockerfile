# fastcar on a CPU: docker build -t fastcar . && docker run --rm -v "$PWD:/videos" -u "$(id -u)" fastcar generate ...
FROM python:3.12.8-slim-bookworm
# Without CUDA torch is a tenth of the size.
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml hatch_build.py README.md LICENSE /fastcar/
COPY configs /fastcar/configs
COPY src /fastcar/src
RUN pip install --no-cache-dir /fastcar && useradd fastcar && install -d -m 1777 /videos
USER fastcar
WORKDIR /videos
ENV HOME=/videos
ENTRYPOINT ["fastcar"]
