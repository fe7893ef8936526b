# docker build -t eventweir:0.1.0 .
# Several platforms at once, cross-compiled and not emulated: docker buildx build --platform linux/amd64,linux/arm64 .
# The release workflow builds the last stage from binaries that it has made itself: --build-context build=FOLDER.
ARG RUST_VERSION=1.95

# On the machine that builds, whatever the platform of the image: zig compiles the C in ring and jemalloc, and links,
# for each of them.
FROM --platform=$BUILDPLATFORM docker.io/library/rust:${RUST_VERSION}-bookworm AS toolchain
RUN apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/* \
    && pip install --break-system-packages --no-cache-dir ziglang==0.17.0 \
    && cargo install --locked cargo-auditable@0.7.7 cargo-zigbuild@0.24.1 \
    && cargo install --locked --features cli cargo-about@0.9.3
COPY .ci/cross /usr/local/bin/cross
ARG TARGETARCH
RUN rustup target add "$(cross triple "$TARGETARCH")"
WORKDIR /src

# The dependencies alone: this layer lasts for as long as they do.
FROM toolchain AS dependencies
ARG TARGETARCH
COPY .cargo .cargo
COPY Cargo.toml Cargo.lock ./
# Cargo.toml names them, and Cargo wants to find each.
COPY benches benches
RUN mkdir src && echo 'fn main() {}' >src/main.rs && touch src/lib.rs && cross build "$TARGETARCH"

FROM dependencies AS compile
ARG TARGETARCH
COPY . .
# Newer than the empty files that were compiled above.
RUN touch src/main.rs src/lib.rs && cross build "$TARGETARCH" && cross install "$TARGETARCH" /out \
    && cargo about generate --locked --output-file /out/THIRD-PARTY-LICENSES.html .ci/about.hbs \
    && cp LICENSE /etc/ssl/certs/ca-certificates.crt /out/

# What the image is made of, in one folder.
FROM scratch AS build
COPY --from=compile /out/ /

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG SOURCE=
LABEL org.opencontainers.image.title="eventweir" \
      org.opencontainers.image.description="Aggregates Kubernetes Events in front of the apiserver, and loses none silently" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${SOURCE}"
# For an apiserver whose certificate a public authority has signed; in a cluster its CA comes with the ServiceAccount.
COPY --from=build /ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /LICENSE /THIRD-PARTY-LICENSES.html /
COPY --from=build /eventweir /eventweir
# Not root; and no shell, no package, no other file. For health: eventweir healthcheck.
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["/eventweir"]
# On loopback, which in a container only the same pod reaches; helm/eventweir shows the flags for a Service.
CMD ["serve"]
