# Build: docker build -t eventweir:0.1.0 .
FROM rust:1-alpine AS build
# musl-dev and gcc for the C in ring and mimalloc; Alpine's own target is musl, so the binary is static.
RUN apk add --no-cache gcc musl-dev make
WORKDIR /src
# Use the image's toolchain, rather than let rustup fetch the one that rust-toolchain.toml names.
ENV RUSTUP_TOOLCHAIN=stable
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY benches benches
RUN cargo build --locked --release

FROM scratch
LABEL org.opencontainers.image.title="eventweir" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/LICENSE /LICENSE
COPY --from=build /src/target/release/eventweir /eventweir
# Not root, and no shell to become it with.
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["/eventweir"]
CMD ["serve"]
