# The daemon that runs in each sandbox, as an image to copy it from: `COPY --from=sandboxd /sandboxd /usr/local/bin/`.
ARG RUST=1-bookworm
FROM rust:${RUST} AS build
WORKDIR /src
COPY . .
RUN scripts/static sandboxd /out

FROM scratch
COPY --from=build /out/sandboxd /sandboxd
USER 65532:65532
ENTRYPOINT ["/sandboxd"]
