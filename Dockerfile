# docker build -t eventweir:0.1.0 .
# Alpine's own Rust target is musl, so the binary is static; gcc and make are for the C in ring and jemalloc.
FROM rust:1-alpine AS build
RUN apk add --no-cache ca-certificates gcc make musl-dev
WORKDIR /src
COPY . .
# On arm64 some kernels have pages of 64 KiB, and an allocator that was built for smaller ones does not run there.
RUN if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi; cargo build --locked --release

FROM scratch
LABEL org.opencontainers.image.title="eventweir" \
      org.opencontainers.image.licenses="Apache-2.0"
# For an apiserver whose certificate a public authority has signed; in a cluster its CA comes with the ServiceAccount.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/LICENSE /LICENSE
COPY --from=build /src/target/release/eventweir /eventweir
# Not root; and no shell, no package, no other file.
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["/eventweir"]
# On loopback, which in a container only the same pod reaches; helm/eventweir shows the flags for a Service.
CMD ["serve"]
