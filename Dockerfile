FROM debian:bookworm
WORKDIR /snug
COPY . .
RUN scripts/setup.sh
RUN make build
