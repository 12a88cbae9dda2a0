# The command, for the CPU:
#   docker build -t snug .
#   docker run --rm -v "$PWD/runs:/snug/runs" snug train examples/gpt-demo.toml
# LibTorch is the torch package that pip finds; with an index that has builds for the CPU alone, which are a tenth as
# large: --build-arg PIP_INDEX_URL=...
FROM debian:bookworm
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL
WORKDIR /snug
COPY . .
RUN scripts/setup.sh && make build
ENTRYPOINT ["build/release/snug"]
CMD ["--help"]
